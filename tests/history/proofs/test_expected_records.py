"""What an absent record means: wrong, pending, past retention, or compacted away."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unstable_stream.events.id_sets import digest
from unstable_stream.history.proofs.expected_records import DerivedCheck, Expected
from unstable_stream.history.proofs.ledger import RecordIndex
from unstable_stream.history.proofs.reports import Check, differing_fields
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Record, TopicSpec
from unstable_stream.log.reading import read_to_end


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    """Records ``x1``, ``x3`` and ``y1``: of key ``x`` a second one has gone, of ``y`` the newest."""
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as opened:
        await opened.create_topics([TopicSpec("made", 1)])
        await opened.append(
            [Record("made", name[0], body(name), {"ce_id": name.encode()}) for name in ("x1", "x3", "y1")]
        )
        yield opened


def body(name: str) -> bytes:
    return json.dumps({"name": name}).encode()


async def index_of(log: LocalLog) -> RecordIndex:
    index = RecordIndex("made")
    async for record in read_to_end(log, ("made",)):
        index.add(record.partition, record.offset, record.headers["ce_id"].decode(), digest(record.value))
    index.seal()
    return index


def expected(name: str, *, due: bool = True) -> Expected:
    return Expected(name, digest(body(name)), lambda: body(name), f"cause of {name}", due, name[0])


async def finished(log: LocalLog, *expectations: Expected, **flags: bool) -> Check:
    check = Check("made")
    derived = DerivedCheck(check, await index_of(log), **flags)  # type: ignore[arg-type]  # only flags
    for each in expectations:
        derived.expect(each)
    await derived.finish(log)
    return check


ALL = [expected(name) for name in ("x1", "x2", "x3", "y1", "y2")]
FOLLOWS_FROM_NOTHING = [("x3", "made[0]@1"), ("y1", "made[0]@2")]


@pytest.mark.parametrize(
    ("expectations", "flags", "counts", "first"),
    [
        # Where nothing is ever deleted, absent records are wrong; past its retention anything may be gone.
        (ALL, {}, (3, 2, 0, 0), [("x2", "cause of x2"), ("y2", "cause of y2")]),
        (ALL, {"trimmed": True}, (3, 0, 2, 0), []),
        # Of a compacted topic the newest of a key must be there: x2 was followed by x3, y2 by nothing.
        (ALL, {"compacted": True}, (3, 1, 1, 0), [("y2", "cause of y2")]),
        (
            [*ALL, expected("y3"), expected("z1", due=False)],
            {"compacted": True},
            (3, 1, 2, 1),
            [("y3", "cause of y3")],
        ),
        # What nobody expects is wrong, unless it may be there.
        (ALL[:1], {}, (1, 2, 0, 0), FOLLOWS_FROM_NOTHING),
        (ALL[:1], {"extras": True}, (1, 0, 0, 0), []),
    ],
)
async def test_what_an_absent_or_unexpected_record_means(
    log: LocalLog,
    expectations: list[Expected],
    flags: dict[str, bool],
    counts: tuple[int, ...],
    first: list[tuple[str, str]],
) -> None:
    check = await finished(log, *expectations, **flags)
    assert (check.compared, check.differing, check.gone, check.pending) == counts
    assert [(one.event_id, one.where) for one in check.first] == first
    if first == FOLLOWS_FROM_NOTHING:
        assert {one.what for one in check.first} == {"follows from nothing in the log"}


async def test_no_more_are_shown_than_ten_and_all_are_counted(log: LocalLog) -> None:
    others = [expected(f"a{number}") for number in range(2500)]
    check = await finished(log, *others)
    assert (check.differing, len(check.first)) == (2503, 10)


async def test_a_second_record_of_an_event_may_differ_only_where_games_are_played_twice(
    log: LocalLog,
) -> None:
    await log.append([Record("made", "x", b'{"name": "other"}', {"ce_id": b"x1"})])
    everything = [expected(name) for name in ("x1", "x3", "y1")]
    check = await finished(log, *everything)
    assert check.differing == 1
    assert check.first[0].what == "the same event is at made[0]@0 with other content"
    assert (await finished(log, *everything, replayed=True)).differing == 0


def test_fields_that_differ_are_named_with_both_values() -> None:
    one = {"a": 1, "b": [{"c": "x"}, 2], "d": "same", "e": [1]}
    other = {"a": 1.5, "b": [{"c": "y"}, 2], "d": "same", "e": [1, 2], "f": None, "g": 3}
    found = differing_fields(json.dumps(one).encode(), json.dumps(other).encode())
    assert found == [
        ("$.a", "1", "1.5"),
        ("$.b[0].c", '"x"', '"y"'),
        ("$.e", "[1]", "[1,2]"),
        ("$.g", "null", "3"),
    ]
    assert differing_fields(b'{"a":1}', b'{ "a": 1 }') == []


def test_of_long_texts_the_place_is_shown_where_they_part() -> None:
    long = "x" * 5000
    ((path, recorded, recomputed),) = differing_fields(
        json.dumps({"t": long + "left" + long}).encode(), json.dumps({"t": long + "right" + long}).encode()
    )
    assert path == "$.t"
    assert recorded.startswith('"…' + "x" * 40 + "left")
    assert recomputed.startswith('"…' + "x" * 40 + "right")
    assert len(recorded) <= 200
