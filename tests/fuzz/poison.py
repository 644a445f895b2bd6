"""Records that no reader expects: bytes that are no event, headers that are no text, absurd events."""

import contextlib
import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from tests.builders import made
from tests.fuzz.mutations import holder, paths
from unstable_stream.errors import EventError
from unstable_stream.events import LATEST_MS, Event, RunStarted, decode_event, encode_event
from unstable_stream.log.port import Record
from unstable_stream.log.records import record_from_event, source_header
from unstable_stream.log.topics import TOPICS_DIR, load_topics
from unstable_stream.runs.config import RunConfig

_GOLDEN: Final = {path.stem: json.loads(path.read_bytes()) for path in (TOPICS_DIR / "golden").glob("*.json")}
_NUMBERS: Final = (-1, 2**63 - 1, -(2**63), 1e308)
_TEXTS: Final = ("", "../../\x00\U0001f4a5", "x" * 3000, "AAAA")
_ABSURD: Final[tuple[Any, ...]] = (None, *_NUMBERS, *_TEXTS, [], {})


def _bodies(example: bytes) -> Iterator[bytes]:
    """Yield bytes that are no event; ``example`` is an event of the topic."""
    yield b""
    yield b"\x00\xff\xfe" * 50
    yield example[:-1]
    yield example + example
    for encoding in ("utf-8-sig", "utf-16", "utf-32-le"):
        yield example.decode().encode(encoding)
    yield b'{"type":"\xc3\x28"}'
    yield b'{"type":"step","type":"rating"}'
    yield b'{"type":"' + b"long" * 50_000 + b'"}'
    yield example.replace(b'"schema_version":1', b'"schema_version":99')
    for number in (b"1" * 5000, b"1e400", b"NaN", b"-Infinity", b'"7"'):
        yield example.replace(b'"occurred_at_ms":', b'"occurred_at_ms":' + number + b',"was":')
    for deep in (b"[" * 5000 + b"]" * 5000, b"[" * 100_000, b'{"a":' * 3000 + b"1" + b"}" * 3000):
        yield deep
        yield example.replace(b'"event_id":', b'"foreign":' + deep + b',"event_id":')


def _headers(run_id: str) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """Yield a record's key and headers; the first are those of an event."""
    yield run_id, {"ce_source": source_header(run_id), "ce_id": b"x", "ce_type": b"unstable_stream.step.v1"}
    yield "", {}
    yield (
        "\x00\U0001f4a5" * 50,
        {"ce_source": b"\xff", "ce_id": b"\xfe" * 1000, "\x00": b"", "x" * 3000: b"1"},
    )
    yield "k" * 20_000, {f"header-{number}": b"\xff" * 10_000 for number in range(20)}


def no_events(run_id: str) -> list[Record]:
    """Return records that are no events, for every topic: of a run by their headers, or of none."""
    made = []
    for spec in load_topics().values():
        example = msgspec.json.encode(_GOLDEN[f"{spec.events[0]}.v1"])
        bodies, headers = list(_bodies(example)), list(_headers(run_id))
        pairs = [(body, headers[0]) for body in bodies] + [(bodies[1], others) for others in headers[1:]]
        made += [Record(spec.name, key, body, named, 1_700_000_000_000) for body, (key, named) in pairs]
    return made


def absurd_events(run_id: str, every: int = 1) -> list[Event]:
    """Return events of a run that decode: each field of each event has absurd values in turn.

    ``every``: only one of so many.
    """
    documents = [{**golden, "run_id": run_id} for golden in _GOLDEN.values()]
    cases = [
        (document, path, value)
        for document in documents
        for path in paths(document)
        if path and path[0] not in ("run_id", "type")
        for value in _ABSURD
    ]
    found: list[Event] = []
    for document, path, value in cases[::every]:
        with contextlib.suppress(EventError):
            found.append(decode_event(msgspec.json.encode(_changed(document, path, value))))
    return found


def absurd_starts(run_id: str, example: RunConfig, log_id: str) -> list[Event]:
    """Return the starts of runs whose configurations and offsets make no sense, each of a run of its own."""
    whole = example.model_dump(mode="json")
    deep: Any = {}
    for _ in range(60):
        deep = {"learner": [deep]} if len(str(deep)) % 2 else [deep]
    values: tuple[Any, ...] = (None, -1, "x", [], deep)
    configs = [{**whole, name: values[place % len(values)]} for place, name in enumerate(whole)]
    configs += [{}, {**whole, "rewards": {"final": [f"A(x={'-' * 9000}1)"]}}]
    configs += [{**whole, "rewards": {"final": [{"type": "os:system", "command": "true"}]}}]
    offsets = itertools.cycle([{"steps": (-(2**63),)}, {"steps": (2**62,) * 500}, {"no such topic": (1,)}])
    absurd: dict[str, Any] = {"name": "\x1b[31mabsurd", "seed": -1, "log_id": log_id}
    return [
        made(RunStarted, run_id=f"{run_id}-{number}", config=config, start_offsets=next(offsets), **absurd)
        for number, config in enumerate(configs)
    ]


def stored_as(event: Event) -> Record:
    """Return the record of an event whose head may be impossible."""
    if not 0 <= event.occurred_at_ms <= LATEST_MS:
        return Record(event.TOPIC, event.run_id, encode_event(event), {}, 5)
    return record_from_event(event)


def _changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    holder(changed, path)[path[-1]] = value
    return changed
