"""The archive follows a log that lost its last records: what it holds is what the log and its past hold."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.archive.history import made_up_run
from tests.conftest import Archives
from unstable_stream.archive import Written, open_archive, query
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.events import Event, GameOutcome, Metrics
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.workers import archiver_divergence
from unstable_stream.workers.archiver import run_archiver

_EVENTS = made_up_run()
_KEPT = 150
"""The first events, which survive the power cut."""


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        yield log


async def _publish(log: EventLog, events: Sequence[Event]) -> None:
    await log.append([record_from_event(event) for event in events])


async def _archive_all(log: EventLog, path: ArchiveAddress) -> int:
    stop = asyncio.Event()
    stop.set()
    flushes: list[Written] = []
    await run_archiver(log, path, stop=stop, flush_interval_s=0.02, on_flush=flushes.append)
    return sum(flush.records for flush in flushes)


async def _lose(tmp_path: Path, lost: Sequence[Event], archive: ArchiveAddress) -> Path:
    """Return a log that lost records which the archive has: a copy of the file from before is put back."""
    path, copy = tmp_path / "log.sqlite", tmp_path / "copy.sqlite"
    async with _opened(path) as log:
        await _publish(log, _EVENTS[:_KEPT])
    shutil.copy(path, copy)
    async with _opened(path) as log:
        await _publish(log, lost)
        await _archive_all(log, archive)
    shutil.copy(copy, path)
    return path


def _content(path: ArchiveAddress) -> dict[str, list[str]]:
    with open_archive(path) as connection:
        return {
            name: sorted(
                map(str, connection.execute(f"SELECT * EXCLUDE (record_number) FROM {name}").fetchall())
            )
            for name in ("events", *(table.name for table in TABLES))
        } | {
            "positions": sorted(map(str, connection.execute("SELECT * FROM positions").fetchall())),
        }


def _played_again(event: Event) -> Event:
    """Return the event as a second attempt records it: the same id, another time and another result."""
    again = msgspec.structs.replace(event, occurred_at_ms=event.occurred_at_ms + 7)
    if isinstance(again, GameOutcome):
        seats = [
            msgspec.structs.replace(seat, reward=-seat.reward, rank=1 - seat.rank) for seat in again.seats
        ]
        return msgspec.structs.replace(again, seats=tuple(seats))
    return again


def _other(number: int) -> list[Event]:
    return made_up_run("run-b", updates=6)[:number]


@pytest.mark.parametrize(
    ("instead", "piece"),
    [
        (lambda lost: [], 2000),
        (lambda lost: _other(20), 2000),
        (lambda lost: _other(200), 2000),
        (lambda lost: [_played_again(event) for event in lost], 2000),
        (lambda lost: [*_other(30), *(_played_again(event) for event in reversed(lost))], 2000),
        (lambda lost: [*lost[20:], *lost[:20]], 2000),
        (lambda lost: _other(200), 3),
    ],
    ids=["nothing", "fewer", "more", "again", "elsewhere", "in another order", "in small pieces"],
)
async def test_an_archive_ahead_of_its_log_becomes_what_a_rebuild_gives(
    tmp_path: Path,
    archive_at: Archives,
    instead: Callable[[Sequence[Event]], list[Event]],
    piece: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archiver_divergence, "_PIECE_OFFSETS", piece)
    lost = _EVENTS[_KEPT:]
    archive = archive_at("a")
    path = await _lose(tmp_path, lost, archive)
    async with _opened(path) as log:
        await _publish(log, instead(lost))
        await _archive_all(log, archive)
        await _archive_all(log, archive_at("rebuilt"))
        assert _content(archive) == _content(archive_at("rebuilt"))
        # What was taken out is kept, and noted.
        kept = query(archive, "SELECT saved_to, records FROM divergences").rows
        noted = sum(records for _, records in kept)
        saved = query(
            archive,
            "SELECT count(*) FROM read_parquet($files)",
            {"files": [file for file, _ in kept]},
            files=True,
        )
        assert saved.rows == [(noted,)]
        assert noted > 0
        # The next start finds nothing.
        assert await _archive_all(log, archive) == 0
        assert query(archive, "SELECT sum(records) FROM divergences").rows == [(noted,)]


async def test_an_event_that_survives_elsewhere_stays_in_the_typed_tables(
    tmp_path: Path, archive_at: Archives
) -> None:
    archive, other = archive_at("a"), tmp_path / "other.sqlite"
    lost = [event for event in _EVENTS[_KEPT:] if not isinstance(event, Metrics)]
    path = await _lose(tmp_path, lost, archive)
    async with _opened(other) as log:
        # A copy of the records on another log: the archive counted them once, from the log that lost them.
        await _publish(log, lost)
        await _archive_all(log, archive)
    async with _opened(path) as log:
        await _archive_all(log, archive)
        assert query(archive, "SELECT count(*) FROM game_outcomes").rows == [
            (sum(isinstance(event, GameOutcome) for event in [*_EVENTS[:_KEPT], *lost]),)
        ]
        rebuilt = archive_at("rebuilt")
        await _archive_all(log, rebuilt)
    async with _opened(other) as log:
        await _archive_all(log, rebuilt)
    assert _content(archive) == _content(rebuilt)


async def test_a_topic_made_again_is_archived_anew(tmp_path: Path, archive_at: Archives) -> None:
    archive = archive_at("a")
    path = tmp_path / "log.sqlite"
    async with _opened(path) as log:
        empty = tmp_path / "empty.sqlite"
    shutil.copy(path, empty)
    async with _opened(path) as log:
        await _publish(log, _EVENTS)
        await _archive_all(log, archive)
    shutil.copy(empty, path)
    async with _opened(path) as log:
        await _publish(log, _other(40))
        assert await _archive_all(log, archive) == 40
        await _archive_all(log, archive_at("rebuilt"))
    assert _content(archive) == _content(archive_at("rebuilt"))


async def test_expired_records_stay(tmp_path: Path, archive_at: Archives) -> None:
    archive = archive_at("a")
    path = await _lose(tmp_path, _EVENTS[_KEPT:], archive)
    async with _opened(path) as log:
        # All that the log kept of trajectories expires, and half of the turns' steps.
        ends = dict(await log.end_offsets("trajectories"))
        halves = {at: end // 2 for at, end in (await log.end_offsets("steps")).items()}
        await log.delete_before(ends | halves)
        await _publish(log, _other(60))
        await _archive_all(log, archive)
        expected = _EVENTS[:_KEPT] + _other(60)
    for table, kind in (("trajectories", "trajectory"), ("steps", "step")):
        count = sum(type(event).__name__.lower() == kind for event in expected)
        assert query(archive, f"SELECT count(*) FROM {table}").rows == [(count,)]
    assert query(archive, "SELECT count(*) FROM events").rows == [(len(expected),)]
