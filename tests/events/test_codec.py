"""Events as bytes: round trips, golden files that must decode forever, and what goes wrong clearly."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import jsonschema
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.pages.asyncapi import event_schema, recorded_structs, schema_file_name
from unstable_stream.errors import EventDecodeError, UnknownEventError, UnknownSchemaVersionError
from unstable_stream.events import (
    EVENT_TYPES,
    MOST_LEVELS,
    Event,
    Rating,
    Trajectory,
    codec,
    decode_event,
    encode_event,
    event_type,
    field_description,
    pack_floats,
    pack_tokens,
    unpack_floats,
    unpack_tokens,
)
from unstable_stream.log.topics import TOPICS_DIR, load_topics

GOLDEN = sorted((TOPICS_DIR / "golden").glob("*.json"))


def golden(name: str) -> bytes:
    return (TOPICS_DIR / "golden" / f"{name}.v1.json").read_bytes().rstrip(b"\n")


def as_recorded(written: Any, recorded: Any) -> Any:
    """Leave out what was added since: fields, also of records within, that come after those recorded."""
    if isinstance(written, dict) and isinstance(recorded, dict):
        assert list(written)[: len(recorded)] == list(recorded)
        return {key: as_recorded(written[key], recorded[key]) for key in recorded}
    if isinstance(written, list) and isinstance(recorded, list) and len(written) == len(recorded):
        return [as_recorded(one, other) for one, other in zip(written, recorded, strict=True)]
    return written


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_events_decode_and_encode_to_the_same_fields(path: Path) -> None:
    data = path.read_bytes().rstrip(b"\n")
    event = decode_event(data)
    assert event_type(event) == path.name.split(".")[0]
    jsonschema.Draft202012Validator(event_schema(event_type(event))).validate(json.loads(data))
    if event.schema_version == type(event).SCHEMA_VERSION:
        recorded, written = json.loads(data), json.loads(encode_event(event))
        assert as_recorded(written, recorded) == recorded
        assert decode_event(encode_event(event)) == event


def test_every_event_type_has_a_golden_event_a_schema_and_one_topic() -> None:
    assert {path.name for path in GOLDEN} >= {schema_file_name(name) for name in EVENT_TYPES}
    topics = load_topics()
    carried = [name for spec in topics.values() for name in spec.events]
    assert sorted(carried) == sorted(EVENT_TYPES)
    for name, cls in EVENT_TYPES.items():
        assert name in topics[cls.TOPIC].events
    assert sorted(topic.order for topic in topics.values()) == [*range(1, len(topics) + 1)]


@pytest.mark.parametrize("name", sorted(EVENT_TYPES))
def test_every_field_is_described_in_the_schema_as_under_the_field(name: str) -> None:
    for schema in event_schema(name)["$defs"].values():
        fields = schema["properties"] if "properties" in schema else dict(enumerate(schema["prefixItems"]))
        assert [key for key, field in fields.items() if key != "type" and not field.get("description")] == []


def test_descriptions_are_plain_text_of_the_docstrings() -> None:
    schema = event_schema("game-outcome")["$defs"]
    assert schema["GameOutcome"]["properties"]["invalid_seat"]["description"] == (
        "The seat whose invalid move ended the game; null: nobody's did."
    )
    # Written as an array: seat, action, valid.
    assert schema["Action"]["prefixItems"][1]["description"] == "Exactly what was passed to the environment."
    assert field_description(Trajectory, "run_id") == "The run."


def test_a_field_without_a_docstring_is_named() -> None:
    class Bare(Event, frozen=True, kw_only=True, tag="bare"):
        weight: float

    with pytest.raises(KeyError, match=r"Bare\.weight has no docstring under it"):
        field_description(Bare, "weight")


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"\x00\x01", EventDecodeError, "not an event"),
        (b"[1, 2]", EventDecodeError, "Expected `object`"),
        (b'{"type":"checkpoint"', EventDecodeError, "truncated"),
        (b"\xff\xfe", EventDecodeError, "not an event"),
        (b'{"no":"type"}', EventDecodeError, "`type`"),
        (b'{"type":"comet"}', UnknownEventError, "comet"),
        (b'{"type":"checkpoint","schema_version":99}', UnknownSchemaVersionError, "99"),
    ],
)
def test_bad_bytes_give_typed_errors(data: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        decode_event(data)


def test_a_wrong_field_is_named_by_its_path() -> None:
    body = json.loads(golden("trajectory"))
    body["turns"][0]["game_turn"] = "first"
    with pytest.raises(EventDecodeError, match=r"\$\.turns\[0\]\.game_turn"):
        decode_event(json.dumps(body).encode())


def test_fields_of_a_later_minor_version_are_ignored_and_missing_ones_get_defaults() -> None:
    body = json.loads(golden("rating"))
    body["invented_later"] = [1, 2, 3]
    del body["schema_version"]
    assert decode_event(json.dumps(body).encode()) == decode_event(golden("rating"))


def test_an_older_version_is_lifted_one_version_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(old: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda body: {(new if key == old else key): value for key, value in body.items()}

    monkeypatch.setattr(Rating, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(
        codec, "UPCASTS", {("rating", 1): rename("skill", "mean"), ("rating", 2): rename("mean", "mu")}
    )
    body = json.loads(golden("rating"))
    body["skill"] = body.pop("mu")
    event = decode_event(json.dumps(body).encode())
    assert isinstance(event, Rating)
    assert (event.mu, event.schema_version) == (26.5, 3)


def test_a_missing_upcast_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rating, "SCHEMA_VERSION", 2)
    with pytest.raises(UnknownSchemaVersionError, match="no upcast"):
        decode_event(golden("rating"))


@given(data=st.binary(max_size=200))
def test_any_bytes_give_an_event_or_an_event_error(data: bytes) -> None:
    with pytest.raises((EventDecodeError, UnknownEventError, UnknownSchemaVersionError)):
        decode_event(data)


@given(
    tokens=st.lists(st.integers(-(2**31), 2**31 - 1)), logprobs=st.lists(st.floats(width=32, allow_nan=False))
)
def test_packed_arrays_come_back_exactly(tokens: list[int], logprobs: list[float]) -> None:
    assert unpack_tokens(pack_tokens(tokens)).tolist() == tokens
    assert np.array_equal(unpack_floats(pack_floats(logprobs)), np.array(logprobs, dtype=np.float32))


def test_packing_is_little_endian_and_rejects_what_does_not_fit() -> None:
    assert pack_tokens([1, -1]) == b"\x01\x00\x00\x00\xff\xff\xff\xff"
    assert pack_floats([1.0]) == b"\x00\x00\x80\x3f"
    with pytest.raises(OverflowError):
        pack_tokens([2**31])


def _nested(levels: int, kind: str) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value] if kind == "list" else {"a": value}
    return value


_FREE = [
    ("run-started", ("config",)),
    ("run-resumed", ("config",)),
    ("checkpoint", ("lora",)),
    ("trajectory", ("turns", 0, "step_info")),
    ("step.with-texts.v1", ("texts", "step_info")),
]


def _with(name: str, path: tuple[Any, ...], value: Any) -> bytes:
    stem = name if "." in name else f"{name}.v1"
    body = json.loads((TOPICS_DIR / "golden" / f"{stem}.json").read_bytes())
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return msgspec.json.encode(body)


def test_the_fields_of_any_form_are_those_that_are_checked() -> None:
    free = {
        (struct.__name__, field)
        for struct in recorded_structs()
        for field, kind in get_type_hints(struct).items()
        if kind == dict[str, Any]
    }
    checked = {("RunStarted", "config"), ("RunResumed", "config"), ("Checkpoint", "lora")}
    assert free == checked | {("Turn", "step_info"), ("StepTexts", "step_info")}


@pytest.mark.parametrize("kind", ["list", "table"])
@pytest.mark.parametrize(("name", "path"), _FREE)
def test_values_nest_at_most_so_deep(name: str, path: tuple[Any, ...], kind: str) -> None:
    event = decode_event(_with(name, path, {"x": _nested(MOST_LEVELS - 1, kind)}))
    assert decode_event(encode_event(event)) == event
    where = ".".join(part for part in path if isinstance(part, str))
    says = rf"nest deeper than {MOST_LEVELS} levels - at `\$\.{where}`"
    for levels in (MOST_LEVELS, 300):
        with pytest.raises(EventDecodeError, match=says):
            decode_event(_with(name, path, {"x": _nested(levels, kind)}))


@pytest.mark.parametrize("deep", [b"[" * 3000 + b"]" * 3000, b"[" * 10**6, b'{"":' * 10**5])
@pytest.mark.parametrize("template", [b"%s", b'{"type":"rating","foreign":%s}', b'{"type":%s}', b"[%s]"])
def test_no_nesting_exhausts_the_decoder(template: bytes, deep: bytes) -> None:
    with pytest.raises(EventDecodeError):
        decode_event(template % deep)


def test_an_error_quotes_little_of_a_long_type() -> None:
    with pytest.raises(UnknownEventError) as found:
        decode_event(b'{"type":"%s"}' % (b"x" * 10**6))
    assert len(str(found.value)) < 1000


@pytest.mark.parametrize(
    ("name", "path"),
    [("trajectory", ("turns", 0)), ("step", ()), ("checkpoint.with-probe.v1", ("probe", "sequences", 0))],
)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("prompt_token_ids", "AAAA"), ("completion_token_ids", "AAAAAA==")),
        *(("logprobs", ""), ("logprobs", "A" * 24)),
    ],
)
def test_packed_arrays_are_whole_and_share_their_lengths(
    name: str, path: tuple[Any, ...], field: str, value: str
) -> None:
    with pytest.raises(EventDecodeError, match="bytes"):
        decode_event(_with(name, (*path, field), value))


def test_an_outcome_promises_no_more_turns_than_a_game_can_have() -> None:
    for turns in (-1, 10**6, 2**63 - 1):
        with pytest.raises(EventDecodeError, match=f"got {turns} - at"):
            decode_event(_with("game-outcome", ("seats", 0, "turns"), turns))
