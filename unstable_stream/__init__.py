"""Event-sourced self-play reinforcement learning for language models on text games."""

from typing import TYPE_CHECKING

from unstable_stream.version import __version__

if TYPE_CHECKING:
    from unstable_stream.streams.plugins import Context, consumer

__all__ = ["Context", "__version__", "consumer"]


def __getattr__(name: str) -> object:
    # Looked up when asked for: whoever only wants the version should not pay for the events' codecs.
    if name in ("Context", "consumer"):
        from unstable_stream.streams import plugins

        return getattr(plugins, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
