"""What a host decides about a partition, without a log: where it begins, what it folds and saves."""

import random
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.model_pool.outcomes import RUN, make_outcome
from unstable_stream.errors import EventError, OffsetOutOfRangeError, ServiceError
from unstable_stream.events import Event
from unstable_stream.log.port import StoredRecord, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.log.saved_state import UnusableStateError
from unstable_stream.services.streams.partition_state import Found, PartitionState, RunFold, Start, decide
from unstable_stream.services.streams.snapshots import (
    MOST_BYTES,
    POSITION,
    SinceSnapshot,
    SnapshotPace,
    pack,
    run_name,
    unpack,
)

AT = TopicPartition("game-outcomes", 3)


@pytest.mark.parametrize(
    ("found", "start"),
    [
        # first, end, begin, committed, snapshot: next_offset, replay_from, snapshot
        (Found(0, 9, 0), Start(0, 0, None)),
        (Found(4, 9, 4), Start(4, 4, None)),
        (Found(2, 9, 5), Start(5, 5, None)),
        (Found(0, 9, 0, None, 7), Start(0, 0, None)),  # the group lost its positions
        (Found(0, 9, 0, 6), Start(6, 0, None)),
        (Found(2, 9, 3, 6), Start(6, 3, None)),
        (Found(0, 9, 0, 6, 4), Start(6, 4, 4)),
        (Found(4, 9, 0, 6, 4), Start(6, 4, 4)),  # the history before a snapshot need not be kept
        (Found(0, 9, 0, 9, 9), Start(9, 9, 9)),
        (Found(9, 9, 0, 9, 9), Start(9, 9, 9)),
        (Found(0, 9, 0, 6, 7), Start(6, 0, None)),  # ahead of what was committed
        (Found(5, 9, 5, 6, 4), Start(6, 5, None)),  # records behind it were deleted
        (Found(5, 9, 6, 6, 4), Start(6, 6, None)),
    ],
)
def test_where_a_partition_begins(found: Found, start: Start) -> None:
    assert decide(AT, found) == start


@pytest.mark.parametrize(
    ("found", "error", "says"),
    [
        (Found(0, 9, 0, 10), OffsetOutOfRangeError, r"\[3\]@10 is out of .* has offsets 0 up"),
        (Found(7, 9, 0, 6, 6), OffsetOutOfRangeError, r"\[3\]@6 is out of .* has offsets 7 up"),
        (Found(7, 9, 0), OffsetOutOfRangeError, r"\[3\]@0 is out of .* has offsets 7 up"),
        (Found(3, 9, 0, 6), ServiceError, r"offsets 3 to 9, but the state up to 6 is a fold from 0"),
        (Found(3, 9, 1, 6, 2), ServiceError, r"offsets 3 to 9, but the state up to 6 is a fold from 1"),
    ],
)
def test_a_partition_with_a_gap_is_not_opened(found: Found, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        decide(AT, found)


# -- the folds ------------------------------------------------------------------------------------


class _Seen:
    """Keeps the numbers of the games that it was given."""

    def __init__(self) -> None:
        self.games: list[int] = []

    def handle(self, event: Event) -> Sequence[Event]:
        game: int = event.game_index  # type: ignore[attr-defined]
        if game == 13:
            raise EventError("an impossible game")
        self.games.append(game)
        return [event]

    def state(self) -> dict[str, Any]:
        return {"games": self.games}

    def load_state(self, state: dict[str, Any]) -> None:
        self.games = state["games"]


def _state(*run_ids: str, next_offset: int = 0) -> PartitionState:
    state = PartitionState("scope", Start(next_offset, next_offset, None), SnapshotPace())
    state.folds = {run_id: RunFold(_Seen(), "group", "digest") for run_id in run_ids}
    return state


def _played(offset: int, game: int, run_id: str = RUN) -> tuple[StoredRecord, Event]:
    event = make_outcome(game, {0: ("a", 1.0), 1: ("b", -1.0)}, run_id=run_id)
    record = record_from_event(event)
    stored = StoredRecord(AT.topic, AT.partition, offset, record.key, record.value, record.headers, 0)
    return stored, event


def _fold(state: PartitionState, *games: int, run_id: str = RUN) -> None:
    first = state.next_offset
    state.fold([_played(first + place, game, run_id) for place, game in enumerate(games)], 0.0)


def test_records_are_folded_once_and_bad_ones_are_rejected() -> None:
    state = _state(RUN, next_offset=5)
    outputs, rejected = state.fold([_played(4, 1), _played(5, 2), _played(6, 13), _played(8, 3)], 0.0)
    assert len(outputs) == 2
    assert [(each.record.offset, each.reported) for each in rejected] == [(6, False)]
    assert rejected[0].reason.endswith("game-outcomes[3]@6: an impossible game")
    garbage = _played(9, 0)[0]
    outputs, rejected = state.fold([(garbage, EventError("no event")), (_played(12, 0)[0], None)], 0.0)
    assert (outputs, [each.reason for each in rejected]) == ([], ["EventError: no event"])
    assert state.next_offset == 13


def test_a_snapshot_saves_what_changed_and_lets_go_what_did_not() -> None:
    state = _state(RUN, "run-b")
    saved = []
    _fold(state, 1, 2)
    for _ in range(3):
        _fold(state, 1, 2, run_id="run-b")
        states = state.snapshot()
        saved.append((set(states), unpack(states[POSITION]).position))
        state.saved(states)
    one = {POSITION, run_name("run-b")}
    assert saved == [({*one, run_name(RUN)}, 4), (one, 6), (one, 8)]
    assert state.folds.keys() == {"run-b"}
    state.saved({})  # no record came: nothing is let go
    assert state.folds.keys() == {"run-b"}


@pytest.mark.parametrize(
    ("since", "due"),
    [
        ({}, False),
        ({"records": 4, "events": 3, "bytes": 30}, True),
        ({"records": 4, "events": 2, "bytes": 30}, False),
        ({"records": 4, "events": 3, "bytes": 30, "last_size": 16}, False),  # large ones are saved less often
        ({"records": 9}, True),
        ({"records": 1, "began_s": 40.0}, True),
        ({"records": 1, "began_s": 41.0}, False),
    ],
)
def test_when_a_snapshot_is_due(since: dict[str, Any], due: bool) -> None:
    pace = SnapshotPace(events=3, times_its_size=2, passed=9, seconds=60.0)
    assert SinceSnapshot(pace, **{"began_s": 99.0, **since}).is_due(100.0) == due


# -- the format -----------------------------------------------------------------------------------


def test_a_saved_state_comes_back() -> None:
    saved = unpack(pack(7, "d", {"a": [1]}), "d", 7)
    assert (saved.position, saved.state) == (7, {"a": [1]})
    assert unpack(pack(7)).position == 7


def _written(**fields: Any) -> bytes:
    """A state as an earlier version wrote it."""
    return zlib.compress(
        msgspec.json.encode({"format": 1, "first": 0, "position": 7, "digest": "d", **fields})
    )


def test_the_state_of_an_earlier_version_is_read() -> None:
    assert unpack(_written(state={"a": 1}, set_aside=False), "d", 7).state == {"a": 1}
    assert unpack(zlib.compress(b'{"format":1,"position":4}')).position == 4


@pytest.mark.parametrize(
    ("packed", "says"),
    [
        (b"\0", "truncated"),
        (pack(7, "d", {})[:-2], "truncated"),
        (zlib.compress(b"[]"), "Expected `object`"),
        (_written(format=2, state={}), "its format is 2, expected 1"),
        (pack(7, "other", {}), "other settings or other code"),
        (pack(8, "d", {}), "it is of offset 8, and usable is one up to 7"),
        (_written(state=None), "could not be saved"),
        (_written(state={}, set_aside=True), "could not be saved"),
    ],
)
def test_a_state_that_cannot_be_used_says_why(packed: bytes, says: str) -> None:
    with pytest.raises(UnusableStateError, match=says):
        unpack(packed, "d", 7)


def test_a_state_too_large_is_not_saved() -> None:
    with pytest.raises(ValueError, match=f"at most {MOST_BYTES} are saved"):
        pack(0, "d", random.Random(0).randbytes(MOST_BYTES + 1).hex())
