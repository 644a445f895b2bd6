"""Turn events into bytes and bytes into events: JSON by msgspec, in this one place.

Encoders and decoders are built once. Decoding looks at ``type`` and ``schema_version`` first, so that an
unknown type and a newer version are told apart from malformed data; an older version is lifted one
version at a time by :data:`UPCASTS`.

Bytes come from the log, so they are foreign. What decodes here is safe for every reader: no value nests
deeper than :data:`~.envelope.MOST_LEVELS`, packed arrays are whole and share their lengths, and no count
makes a reader allocate more than the record itself takes. The log bounds its size (``max_message_bytes``).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Union

import msgspec

from unstable_stream.errors import EventDecodeError, UnknownEventError, UnknownSchemaVersionError
from unstable_stream.events.envelope import Event, unfit
from unstable_stream.events.games import GameOutcome, Step, Trajectory, Turn
from unstable_stream.events.runs import Checkpoint, ProbeSequence, RunResumed, RunStarted
from unstable_stream.events.storable import storable_values


def event_type(event: Event | type[Event]) -> str:
    """Return the stable wire name of an event or event class, e.g. ``game-outcome``."""
    tag = event.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


EVENT_TYPES: Final[Mapping[str, type[Event]]] = {event_type(cls): cls for cls in Event.__subclasses__()}
"""Wire name to class, of every event in the modules that the package imports before this one."""

UPCASTS: Final[Mapping[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]]] = {}
"""``(type, version)`` to a pure function that lifts the decoded JSON of that version to the next."""


_MOST_TURNS: Final = 100_000
"""The most turns of one seat: readers make an id for each step that an outcome promises."""
_LONGEST_QUOTE: Final = 200
"""Characters of foreign text in an error message."""


class _Head(msgspec.Struct):
    type: str
    schema_version: int = 1


_encoder = msgspec.json.Encoder()
_head_decoder = msgspec.json.Decoder(_Head)
_decoders: Final = {name: msgspec.json.Decoder(cls) for name, cls in EVENT_TYPES.items()}
# Almost every event is of a family and version we know: one pass instead of two, a quarter less time.
_current_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Union[tuple(EVENT_TYPES.values())])  # noqa: UP007


def encode_event(event: Event) -> bytes:
    """Return the JSON bytes of an event; equal events give equal bytes.

    Text that is no Unicode is written as :func:`~unstable_stream.events.storable_text` returns it.
    """
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:
        # Deeper than what the event's values are limited to: no field may be left out.
        return _encoder.encode(storable_values(msgspec.to_builtins(event, str_keys=True), deepest=200))


def decode_event(data: bytes | memoryview) -> Event:
    """Return the event in ``data``.

    Raises:
        EventDecodeError: not JSON, a missing field or one of the wrong type, values that nest too deep, or
            packed arrays that do not fit each other; names the field path.
        UnknownEventError: the type is not one of :data:`EVENT_TYPES`.
        UnknownSchemaVersionError: written by a newer version of this package.
    """
    try:
        event = _decode(data)
    except RecursionError as error:
        raise EventDecodeError("not an event: values nest too deep") from error
    check = _CHECKS.get(type(event))
    if check is not None:
        check(event)
    return event


def _decode(data: bytes | memoryview) -> Event:
    try:
        event = _current_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # older, newer or no event: say which below
    else:
        if event.schema_version == event.SCHEMA_VERSION:
            return event
    try:
        head = _head_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventDecodeError(f"not an event: {error}") from error
    decoder = _decoders.get(head.type)
    if decoder is None:
        raise UnknownEventError(
            f"unknown event type {head.type[:_LONGEST_QUOTE]!r}; known: {', '.join(sorted(EVENT_TYPES))}. "
            "Was it written by a newer version? Upgrade unstable_stream."
        )
    newest = EVENT_TYPES[head.type].SCHEMA_VERSION
    if head.schema_version > newest:
        raise UnknownSchemaVersionError(
            f"event {head.type!r} has schema version {head.schema_version}, this version knows up to "
            f"{newest}; upgrade unstable_stream."
        )
    try:
        if head.schema_version == newest:
            return decoder.decode(data)
        return _upcast(data, head, newest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventDecodeError(f"event {head.type!r}: {error}") from error


def _check_arrays(event: Event, arrays: Turn | Step | ProbeSequence, path: str = "") -> None:
    tokens, prompt = len(arrays.completion_token_ids), len(arrays.prompt_token_ids)
    if not tokens % 4 and len(arrays.logprobs) == tokens and not prompt % 4:
        return
    expected = (
        f"{tokens} bytes, as completion_token_ids has" if not (tokens | prompt) % 4 else "4 bytes an item"
    )
    lengths = f"{prompt} bytes of prompt, {tokens} of completion, {len(arrays.logprobs)} of logprobs"
    raise EventDecodeError(f"event {event_type(event)!r}: expected {expected}, got {lengths} - at `$.{path}`")


def _check_values(event: Event, values: Mapping[str, Any], path: str) -> None:
    # Most are flat, and this is passed for every turn of every trajectory.
    for value in values.values():
        if value.__class__ is dict or value.__class__ is list:
            break
    else:
        return
    problem = unfit(values)
    if problem is not None:
        raise EventDecodeError(f"event {event_type(event)!r}: values {problem} - at `$.{path}`")


def _check_trajectory(event: Trajectory) -> None:
    for turn in event.turns:
        _check_arrays(event, turn, "turns")
        if turn.step_info:
            _check_values(event, turn.step_info, "turns.step_info")


def _check_step(event: Step) -> None:
    _check_arrays(event, event)
    if event.texts is not None:
        _check_values(event, event.texts.step_info, "texts.step_info")


def _check_outcome(event: GameOutcome) -> None:
    for seat in event.seats:
        if not 0 <= seat.turns <= _MOST_TURNS:
            raise EventDecodeError(
                f"event 'game-outcome': expected 0 to {_MOST_TURNS}, got {seat.turns} - at `$.seats.turns`"
            )


def _check_config(event: RunStarted | RunResumed) -> None:
    _check_values(event, event.config, "config")


def _check_checkpoint(event: Checkpoint) -> None:
    _check_values(event, event.lora, "lora")
    for sequence in event.probe.sequences if event.probe else ():
        _check_arrays(event, sequence, "probe.sequences")
        if len(sequence.base_logprobs) != len(sequence.logprobs):
            raise EventDecodeError("event 'checkpoint': arrays of unlike lengths - at `$.probe.sequences`")


# Of events with fields of any form or with arrays that share a length: what the types do not say.
_CHECKS: Final[Mapping[type[Event], Callable[[Any], None]]] = {
    Trajectory: _check_trajectory,
    Step: _check_step,
    GameOutcome: _check_outcome,
    RunStarted: _check_config,
    RunResumed: _check_config,
    Checkpoint: _check_checkpoint,
}


def _upcast(data: bytes | memoryview, head: _Head, newest: int) -> Event:
    body: dict[str, Any] = msgspec.json.decode(data)
    for version in range(head.schema_version, newest):
        lift = UPCASTS.get((head.type, version))
        if lift is None:
            raise UnknownSchemaVersionError(
                f"event {head.type!r} has schema version {version}, and no upcast leads to {version + 1}"
            )
        body = lift(body) | {"schema_version": version + 1}
    return _decoders[head.type].decode(_encoder.encode(body))
