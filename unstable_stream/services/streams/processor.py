"""The stream processors: each is a fold of one run, made by a spec."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec

from unstable_stream.events import Event
from unstable_stream.extensions import KINDS, use_of
from unstable_stream.runs.code import named_code
from unstable_stream.runs.config import RunConfig


class Processor(Protocol):
    """A fold of one run with its state. It is cheap to make. The same events always give the same state."""

    def handle(self, event: Event) -> Sequence[Event]:
        """Fold one event; return the events that follow from it, in order.

        Raises:
            EventError: the event is impossible. The state is unchanged, and the host rejects the record.
                Any other exception is a bug and stops the host.
        """


@runtime_checkable
class KeepsState(Protocol):
    """A processor whose state can be saved. Without these methods it is folded from the beginning."""

    def state(self) -> dict[str, Any]:
        """Return everything the fold depends on, as JSON values.

        Raises:
            ValueError: it is not known, because custom code keeps a state and does not tell it.
        """

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned, also after a trip through JSON."""


@runtime_checkable
class HasRest(Protocol):
    """A processor that publishes results of several events at once; some wait for later events."""

    def rest(self) -> Sequence[Event]:
        """Return events about what has been folded and not been published; change nothing.

        The host publishes them when it puts the fold away, perhaps more than once: what was folded decides
        their ids and everything in them.
        """


@dataclass(frozen=True, slots=True)
class ProcessorSpec:
    """A stream processor: its name, its input topics, and a function that makes it."""

    name: str
    """Names the consumer group."""
    inputs: tuple[str, ...]
    """The topics it reads."""
    make: Callable[[str, RunConfig], Processor]
    """Returns a fresh fold of a run from the run's id and first configuration; raises :class:`ConfigError` if
    the configuration does not allow it.
    """
    settings: Callable[[RunConfig], Any] = lambda config: None
    """Returns the settings that the fold depends on, as JSON values. A state is used only with the settings
    that it was saved under.
    """
    code: tuple[str, ...] = ()
    """The kinds of extension that the fold may run. A state is used only with the code it was saved under."""
    version: int = 1
    """Version of the fold. Raise it when the same events give another state than before."""

    def runs_code_of(self, config: RunConfig) -> bool:
        """Return whether the fold of a run calls code that the run brings along."""
        return any(kind in self.code for kind, _, _ in named_code(config))

    def digest(self, config: RunConfig) -> str:
        """Return the digest of a run's fold; if it is equal, the same events give the same state.

        Raises:
            ConfigError: code that the configuration names cannot be loaded, or not here.
        """
        uses = [
            use_of(KINDS[kind], reference, key)
            for kind, key, reference in named_code(config)
            if kind in self.code
        ]
        about = [self.name, self.version, self.settings(config), uses]
        return hashlib.sha256(msgspec.json.encode(about)).hexdigest()


def group_of(processor_name: str, run_id: str | None) -> str:
    """Return the consumer group of a processor; ``None`` serves all runs."""
    return processor_name if run_id is None else f"{processor_name}/{run_id}"
