"""Declare a plug-in consumer, check at once that it can run, and find one by its name."""

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import entry_points
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple, Protocol, cast, overload

import msgspec

from unstable_stream.console import get_logger
from unstable_stream.errors import PluginError
from unstable_stream.events import EVENT_TYPES, Event, Metrics, event_id
from unstable_stream.extensions import KINDS, Reference, entry_points_of
from unstable_stream.extensions.imports import NotImportableError, import_file, import_module
from unstable_stream.extensions.objects import registered
from unstable_stream.extensions.permission import check_allowed
from unstable_stream.extensions.reference import OBJECT_PREFIX

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PLAIN: Final = (str, int, float, bool, bytes, type(None))
_NO_STATE: Final = object()


class Position(NamedTuple):
    """The place of an event in the log."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class Context:
    """The context of one event: its position, the state to fold it into, and a way to emit metrics."""

    __slots__ = ("_emitted", "_event", "_plugin_name", "_state", "position")

    position: Position
    """Topic, partition and offset of the event."""

    def __init__(self, plugin_name: str, event: Event, position: Position, state: object = _NO_STATE) -> None:
        """Store the arguments; the host makes one context for every event."""
        self._plugin_name = plugin_name
        self._event = event
        self._state = state
        self._emitted: dict[str, Metrics] = {}
        self.position = position

    @property
    def run_id(self) -> str:
        """The run the event belongs to."""
        return self._event.run_id

    @property
    def state(self) -> Any:  # the type that the plug-in's factory makes
        """The state of this run in this partition of the topic; change it in place.

        Raises:
            PluginError: the plug-in was declared without ``state=…``.
        """
        if self._state is _NO_STATE:
            raise PluginError(
                f"plug-in {self._plugin_name!r} keeps no state: declare it with "
                "@consumer(…, state=dict), or with a dataclass of your own instead of dict"
            )
        return self._state

    @property
    def logger(self) -> Any:  # structlog publishes no usable type for a bound logger
        """A logger that names the plug-in, the run and the position."""
        return get_logger(f"plugin/{self._plugin_name}").bind(
            plugin=self._plugin_name, run=self.run_id, position=str(self.position)
        )

    def emit(self, name: str, value: float, *, update: int | None = None) -> None:
        """Publish one number to topic ``metrics``, if handling the event succeeds.

        The id of the metric is computed from plug-in, event and ``name``. If the event is handled again, the
        metric still counts once.

        Args:
            name: the metric's name.
            value: a finite number.
            update: the learner update that the metric belongs to; ``None`` if it belongs to none.

        Raises:
            ValueError: the number is not finite, or this event has emitted ``name`` before.
        """
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"metric {name!r} is {number}: expected a finite number")
        if name in self._emitted:
            raise ValueError(f"metric {name!r} was emitted for this event before: one value for each name")
        source = f"plugin/{self._plugin_name}"
        self._emitted[name] = Metrics(
            event_id=event_id(self.run_id, "metrics", source, self._event.event_id, name),
            run_id=self.run_id,
            occurred_at_ms=self._event.occurred_at_ms,
            source=source,
            values={name: number},
            update=update,
        )

    @property
    def emitted(self) -> list[Metrics]:
        """The metrics emitted for this event so far."""
        return list(self._emitted.values())


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
                self._check_plain(item, f"{where}[{key!r}]")
        elif type(value) is list:
            for index, item in enumerate(value):
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
        handler: Any = self.target() if inspect.isclass(self.target) else SimpleNamespace(handle=self.target)
        return cast(Handler, handler)

    def wants(self, event: Event) -> bool:
        """Return whether the plug-in receives this event. It never receives its own metrics."""
        if getattr(event, "source", None) == self.source:
            return False
        return not self.event_types or isinstance(event, self.event_types)


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
        return partial(consumer, topics=topics, name=name, state=state, retries=retries, backoff_s=backoff_s)
    name = name or str(target.__name__)
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


# -- found by name --------------------------------------------------------------------------------------

ENTRY_POINTS: Final = f"unstable_stream.{KINDS['consumer'].plural}"
"""The entry point group in which installed packages announce their plug-ins."""


class Discovered(NamedTuple):
    """An installed plug-in."""

    name: str
    """The entry point's name."""
    target: str
    """``module:name``."""
    package: str
    """The distribution that announces the plug-in."""


def discovered_plugins() -> list[Discovered]:
    """Return the plug-ins that installed packages announce, sorted by name; nothing is imported."""
    return sorted(
        Discovered(point.name, point.value, point.dist.name if point.dist else "")
        for point in entry_points(group=ENTRY_POINTS)
    )


def load_plugin(target: str) -> Plugin:
    """Import and return a plug-in.

    Args:
        target: ``module:name`` (the working directory is searched too), ``path/to/file.py:name``, or the name
            of an entry point. ``:name`` may be left out if the module holds only one plug-in.

    Raises:
        PluginError: the target cannot be imported or is no plug-in; one line that says what to do.
        ConfigError: this process may not load the target.
    """
    if target.startswith(OBJECT_PREFIX):
        return _checked(registered(target, "consumers"), target)
    point = entry_points_of(KINDS["consumer"]).get(target)
    reference = Reference(point.value if point is not None else target)
    check_allowed(target, "consumer")
    try:
        if reference.file is not None:
            path, attribute = reference.file
            place = str(path)
            module = import_file(path)
        else:
            place, _, attribute = reference.target.partition(":")
            if not all(part.isidentifier() for part in place.split(".")):
                raise PluginError(
                    f"{target!r} is no plug-in: expected module:name, path/to/file.py:name, or a name "
                    "that 'unstable-stream consume --list' shows"
                )
            module = import_module(place)
    except NotImportableError as error:
        raise PluginError(str(error)) from error
    return _plugin_in(module, place, attribute)


def _plugin_in(module: ModuleType, place: str, attribute: str) -> Plugin:
    found = {name: value for name, value in vars(module).items() if isinstance(value, Plugin)}
    if not attribute and len(found) == 1:
        return next(iter(found.values()))
    has = f"it has {', '.join(f'{place}:{name}' for name in sorted(found)) or 'none'}"
    if not attribute:
        raise PluginError(f"{place}: say which plug-in, module:name; {has}")
    value = getattr(module, attribute, None)
    if value is None:
        raise PluginError(f"{place} has no {attribute!r}; {has}")
    return _checked(value, f"{place}:{attribute}")


def _checked(value: object, name: str) -> Plugin:
    if isinstance(value, Plugin):
        return value
    raise PluginError(
        f"{name} is a {type(value).__name__}, not a plug-in: decorate it with "
        "@consumer(topics=[…]) from unstable_stream"
    )
