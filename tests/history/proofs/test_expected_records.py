"""What an absent record means: wrong, pending, past retention, or compacted away."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unstable_stream.events.id_sets import IdTable, digest
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


async def finished(
    log: LocalLog,
    *expectations: Expected,
    trimmed: bool = False,
    compacted: bool = False,
    replayed: bool = False,
    extras: bool = False,
) -> Check:
    check = Check("made")
    derived = DerivedCheck(
        check,
        await index_of(log),
        trimmed=trimmed,
        compacted=compacted,
        replayed=replayed,
        extras=extras,
    )
    for each in expectations:
        derived.expect(each)
    await derived.finish(log)
    return check


ALL = [expected(name) for name in ("x1", "x2", "x3", "y1", "y2")]


async def test_absent_records_are_wrong_where_nothing_is_ever_deleted(log: LocalLog) -> None:
    check = await finished(log, *ALL)
    assert (check.compared, check.differing, check.gone, check.pending) == (3, 2, 0, 0)
    assert [(one.event_id, one.where) for one in check.first] == [
        ("x2", "cause of x2"),
        ("y2", "cause of y2"),
    ]


async def test_of_a_compacted_topic_the_newest_of_a_key_must_be_there(log: LocalLog) -> None:
    check = await finished(log, *ALL, compacted=True)
    assert (check.compared, check.differing, check.gone) == (3, 1, 1)
    assert [one.event_id for one in check.first] == ["y2"], "x2 was followed by x3, y2 by nothing"


async def test_several_absent_in_a_row_of_a_compacted_key(log: LocalLog) -> None:
    check = await finished(log, *ALL, expected("y3"), expected("z1", due=False), compacted=True)
    assert (check.compared, check.differing, check.gone, check.pending) == (3, 1, 2, 1)
    assert [one.event_id for one in check.first] == ["y3"]


async def test_past_its_retention_anything_may_be_gone(log: LocalLog) -> None:
    check = await finished(log, *ALL, trimmed=True)
    assert (check.compared, check.differing, check.gone) == (3, 0, 2)


async def test_what_nobody_expects_is_wrong_unless_it_may_be_there(log: LocalLog) -> None:
    check = await finished(log, expected("x1"))
    assert (check.compared, check.differing) == (1, 2)
    assert [(one.where, one.event_id, one.what) for one in check.first] == [
        ("made[0]@1", "x3", "follows from nothing in the log"),
        ("made[0]@2", "y1", "follows from nothing in the log"),
    ]
    assert (await finished(log, expected("x1"), extras=True)).differing == 0


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


def test_ids_are_found_under_the_number_they_were_first_added_with() -> None:
    table = IdTable()
    for name in ("b", "a", "b", "c"):
        table.add(name)
    table.seal()
    assert table.find(["a", "b", "c", "d"]) == [1, 0, 3, -1]
    assert list(table.repeated()) == [(2, 0)]
    empty = IdTable()
    empty.seal()
    assert empty.find(["a"]) == [-1]
    assert table.find([]) == []


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
