"""Declare a plug-in consumer and check at once that it can run."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, cast, overload

import msgspec

from unstable_stream.errors import PluginError
from unstable_stream.events import EVENT_TYPES, Event
from unstable_stream.services.streams.plugins.context import Context

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PLAIN: Final = (str, int, float, bool, bytes, type(None))


class Handler(Protocol):
    """A running plug-in; its methods may be coroutine functions."""

    def handle(self, event: Event, context: Context) -> object:
        """Take one event."""

    # A class may also have start() and stop(), without arguments.


class StateCodec:
    """Makes, saves and restores a plug-in's state.

    A ``dict`` may hold values that are equal after saving and restoring: dicts, lists, strings, numbers,
    booleans, bytes and ``None``. A dataclass or :class:`msgspec.Struct` is restored with the types of its
    fields.
    """

    def __init__(self, factory: Callable[[], Any], plugin_name: str) -> None:
        """Check that a fresh state can be saved and restored; raises :class:`PluginError` if not."""
        self._factory = factory
        self._plugin_name = plugin_name
        fresh = factory()
        self._plain = type(fresh) is dict
        try:
            self._decoder = msgspec.msgpack.Decoder(Any if self._plain else type(fresh))
            same = self.decode(self.encode(fresh)) == fresh
        except (TypeError, msgspec.MsgspecError) as error:
            raise PluginError(
                f"plug-in {plugin_name!r}: a state of type {type(fresh).__name__} cannot be saved ({error}); "
                "take dict, a dataclass or a msgspec.Struct"
            ) from error
        if not same:
            raise PluginError(
                f"plug-in {plugin_name!r}: a state of type {type(fresh).__name__} does not come back equal "
                "when it is saved and restored; take dict, a dataclass or a msgspec.Struct"
            )

    def fresh(self) -> Any:  # of the plug-in's own type
        """Return a new state."""
        return self._factory()

    def encode(self, state: Any) -> bytes:
        """Return the state as bytes; raises :class:`PluginError` if a value in it cannot be restored."""
        if self._plain:
            self._check_plain(state, "state")
        try:
            return msgspec.msgpack.encode(state)
        except (TypeError, ValueError, OverflowError) as error:
            raise PluginError(f"plug-in {self._plugin_name!r}: its state cannot be saved: {error}") from error

    def decode(self, data: bytes) -> Any:
        """Return the state in ``data``; raises :class:`PluginError` if it does not fit the declared type any
        more.
        """
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise PluginError(
                f"plug-in {self._plugin_name!r}: its saved state does not fit its declaration any more: "
                f"{error}. Start over with --reset, or give the plug-in another name"
            ) from error

    def _check_plain(self, value: Any, where: str) -> None:
        if type(value) is dict:
            for key, item in value.items():
                if type(key) not in _PLAIN:
                    self._refuse(f"a key of {where}", key)
                if type(item) not in _PLAIN:
                    self._check_plain(item, f"{where}[{key!r}]")
        elif type(value) is list:
            for index, item in enumerate(value):
                if type(item) not in _PLAIN:
                    self._check_plain(item, f"{where}[{index}]")
        elif type(value) not in _PLAIN:
            self._refuse(where, value)

    def _refuse(self, where: str, value: object) -> None:
        raise PluginError(
            f"plug-in {self._plugin_name!r}: {where} is of type {type(value).__name__}, which would not come "
            "back the same: use dict, list, str, int, float, bool, bytes and None, or a dataclass as state"
        )


@dataclass(frozen=True)
class Plugin:
    """A declared plug-in consumer. Calling it calls its function or class."""

    name: str
    """Names its group, its metrics' source and its file of states."""
    topics: tuple[str, ...]
    event_types: tuple[type[Event], ...]
    """The event types that it receives; empty: every event of its topics."""
    target: Callable[..., Any]
    state: Callable[[], Any] | None
    """Makes a fresh state; ``None``: the plug-in keeps no state."""
    retries: int
    """The number of retries of an event that failed."""
    backoff_s: float
    """Seconds before the first retry; doubled before each further one."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.target(*arguments, **named)

    @property
    def doc(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.target) or "").partition("\n")[0]

    @property
    def source(self) -> str:
        """The source of its metrics, and its group when it serves all runs."""
        return f"plugin/{self.name}"

    @cached_property
    def codec(self) -> StateCodec | None:
        """Saves and restores the state; ``None``: the plug-in keeps no state."""
        return None if self.state is None else StateCodec(self.state, self.name)

    def open(self) -> Handler:
        """Return a handler: a new instance of a class, or one that calls the function."""
        if inspect.isclass(self.target):
            handler: Any = self.target()
            return cast(Handler, handler)
        return _FunctionHandler(self.target)

    def wants(self, event: Event) -> bool:
        """Return whether the plug-in receives this event. It never receives its own metrics."""
        if getattr(event, "source", None) == self.source:
            return False
        return not self.event_types or isinstance(event, self.event_types)


class _FunctionHandler:
    def __init__(self, function: Callable[[Event, Context], object]) -> None:
        self.handle = function


@overload
def consumer(target: Callable[..., Any], /) -> Plugin: ...


@overload
def consumer(
    *,
    topics: Sequence[str] | None = None,
    name: str | None = None,
    state: Callable[[], Any] | None = None,
    retries: int = 3,
    backoff_s: float = 0.5,
) -> Callable[[Callable[..., Any]], Plugin]: ...


def consumer(
    target: Callable[..., Any] | None = None,
    /,
    *,
    topics: Sequence[str] | None = None,
    name: str | None = None,
    state: Callable[[], Any] | None = None,
    retries: int = 3,
    backoff_s: float = 0.5,
) -> Plugin | Callable[[Callable[..., Any]], Plugin]:
    """Make a plug-in consumer of a function ``(event, context)`` or a class with ``handle(event, context)``.

    Either may be ``async``. A class may have ``start()`` and ``stop()``. The annotation of ``event`` filters:
    with ``event: Trajectory | GameOutcome`` the plug-in receives only these types; without an annotation it
    receives all.

    Args:
        target: the function or class, when used without parentheses.
        topics: the topics to read; by default those of the annotated event types.
        name: the plug-in's name; by default that of the function or class. Positions and state are stored
            under it.
        state: makes a fresh state, one for each run in each partition: ``dict``, a dataclass or a Struct.
        retries: the number of retries before an event that failed is set aside.
        backoff_s: seconds before the first retry; doubled before each further one.

    Raises:
        PluginError: the plug-in cannot run as declared; the message says what to change.
    """
    if target is None:
        return lambda given: _declare(given, name or given.__name__, topics, state, retries, backoff_s)
    return _declare(target, name or target.__name__, topics, state, retries, backoff_s)


def _declare(
    target: Callable[..., Any],
    name: str,
    topics: Sequence[str] | None,
    state: Callable[[], Any] | None,
    retries: int,
    backoff_s: float,
) -> Plugin:
    if not _NAME.fullmatch(name):
        raise PluginError(f"plug-in name {name!r}: expected up to 100 letters, digits, '.', '_' and '-'")
    if isinstance(topics, str):
        raise PluginError(
            f"plug-in {name!r}: topics = {topics!r} is one string; expected a list: [{topics!r}]"
        )
    if retries < 0 or backoff_s < 0:
        raise PluginError(f"plug-in {name!r}: retries and backoff_s must be 0 or more")
    handle = getattr(target, "handle", None) if inspect.isclass(target) else target
    if not callable(handle):
        raise PluginError(f"plug-in {name!r}: {target!r} is neither a function nor a class with handle()")
    event_types = _event_types(name, handle, is_method=inspect.isclass(target))
    known = {event_type.TOPIC for event_type in EVENT_TYPES.values()}
    if topics is None:
        topics = sorted({event_type.TOPIC for event_type in event_types})
    if not topics:
        raise PluginError(
            f"plug-in {name!r}: name the topics, @consumer(topics=[…]), or annotate the event's type; "
            "topics: " + ", ".join(sorted(known))
        )
    for event_type in event_types:
        # A copy of a topic has another name, and the event types on it are not known here.
        if event_type.TOPIC not in topics and known.issuperset(topics):
            raise PluginError(
                f"plug-in {name!r}: {event_type.__name__} is on topic {event_type.TOPIC!r}, which is not "
                f"among its topics {list(topics)}"
            )
    plugin = Plugin(name, tuple(topics), event_types, target, state, retries, backoff_s)
    _ = plugin.codec  # finds a state that cannot be saved at import
    return plugin


def _event_types(name: str, handle: Callable[..., Any], *, is_method: bool) -> tuple[type[Event], ...]:
    parameters = list(inspect.signature(handle).parameters.values())[is_method:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) != 2:
        raise PluginError(
            f"plug-in {name!r}: expected two parameters, (event, context), found {len(positional)}"
        )
    try:
        annotation = typing.get_type_hints(handle).get(positional[0].name, Event)
    except NameError as error:
        raise PluginError(
            f"plug-in {name!r}: the annotation of its first parameter cannot be resolved: {error}; import "
            "the type where the module is run, not only for the type checker"
        ) from error
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    for member in members:
        if not (inspect.isclass(member) and issubclass(member, Event)):
            raise PluginError(
                f"plug-in {name!r}: its first parameter is annotated {annotation!r}; expected an event class "
                "of unstable_stream.events, or a union of them"
            )
    return () if Event in members else tuple(members)
