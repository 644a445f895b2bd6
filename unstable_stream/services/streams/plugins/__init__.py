"""Plug-in consumers: a decorated function or class that reads events and emits metrics.

``@consumer`` declares one. It receives a :class:`Context` beside each event. :func:`metrics_of` runs it over
events in memory, for tests. ``unstable-stream consume module:name`` runs it on a log.
"""

from unstable_stream.services.streams.plugins.declare import (
    ENTRY_POINTS,
    Context,
    Discovered,
    Handler,
    Plugin,
    Position,
    StateCodec,
    consumer,
    discovered_plugins,
    load_plugin,
)
from unstable_stream.services.streams.plugins.worker import metrics_of

__all__ = [
    "ENTRY_POINTS",
    "Context",
    "Discovered",
    "Handler",
    "Plugin",
    "Position",
    "StateCodec",
    "consumer",
    "discovered_plugins",
    "load_plugin",
    "metrics_of",
]
