"""What the log deleted before it was archived is noted, and whoever reads history is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

import unstable_stream as us
from tests.archive.history import made_up_run
from tests.conftest import Archives
from tests.history.proofs.recorded_run import record_run
from tests.log.harness import topics_of_one_partition
from tests.places import ask, on_log
from tests.services.workers.archiving import Archiver, archive_all, until
from tests.services.workers.test_learner_service import new_log
from tests.simulation.log import SimulatedLog, Store
from tests.tiers import chosen
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive
from unstable_stream.archive import Written, query
from unstable_stream.archive.export import export_run
from unstable_stream.events import GameOutcome, Trajectory
from unstable_stream.history.views.report.reading import read_run
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Record, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.recording import finish_run, start_run
from unstable_stream.services.streams.tiered_log import with_archive

pytestmark = pytest.mark.longer

AT = TopicPartition("game-outcomes", 0)
EACH = 40
FILE_OR_LONG = chosen("archive_at", ["file"], ["delta"], indirect=True)
_SETTINGS = {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]}


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with new_log(tmp_path) as log:
        await log.create_topics(topics_of_one_partition())
        yield log


def _outcomes(run_id: str, at_ms: int = 0) -> list[Record]:
    found = [event for event in made_up_run(run_id) if isinstance(event, GameOutcome)]
    late = [msgspec.structs.replace(event, occurred_at_ms=at_ms or event.occurred_at_ms) for event in found]
    return [record_from_event(event) for event in (late * 2)[:EACH]]


def _missing(path: ArchiveAddress, run_id: str | None = None) -> list[tuple[object, ...]]:
    """Return what the archive lacks, or what of it may be of a run."""
    of = "missing_records" if run_id is None else f"missing_of_runs WHERE run_id = '{run_id}'"
    sql = f'SELECT topic, "partition", first_offset, next_offset FROM {of} ORDER BY ALL'
    return list(query(path, sql).rows)


@FILE_OR_LONG
async def test_the_range_is_noted_with_the_runs_that_it_may_be_of(
    log: LocalLog, archive_at: Archives
) -> None:
    path = archive_at("a")
    for number in range(4):
        await start_run(log, parse_config(_SETTINGS), f"run-{number}")
        # Written long after run-0 has ended.
        await log.append(_outcomes(f"run-{number}", at_ms=2**45 if number else 0))
        if number == 0:
            await finish_run(log, "run-0", "completed", "")
        if number == 1:
            await archive_all(log, path)
    assert _missing(path) == []
    await log.delete_before({AT: 2 * EACH + 10})
    for _ in range(2):
        await archive_all(log, path)
        missing = ("game-outcomes", 0, 2 * EACH, 2 * EACH + 10)
        assert _missing(path) == [missing]
        # run-0 had ended before, run-3 began behind it.
        of_runs = [_missing(path, f"run-{number}") for number in range(4)]
        assert of_runs == [[], [missing], [missing], []]
        archived = query(path, "SELECT count(*) FROM events WHERE topic = 'game-outcomes'").rows
        assert archived == [(4 * EACH - 10,)]
    async with with_archive(log, path) as history:
        assert (await history.beginning_offsets(AT.topic))[AT] == 2 * EACH + 10
        late = await history.consumer([AT.topic])
        assert (await late.poll())[0].offset == 2 * EACH + 10
        await late.close()

    # An archive that is made only now lacks all that is gone.
    other = archive_at("b")
    with capture_logs() as told:
        await archive_all(log, other)
    assert [line["offsets"] for line in told if line.get("partition") == str(AT)] == ["0 to 89"]
    assert _missing(other) == [("game-outcomes", 0, 0, 2 * EACH + 10)]
    assert _missing(other, "run-2") == [missing]
    assert _missing(other, "run-3") == []


@FILE_OR_LONG
async def test_what_is_deleted_while_the_archiver_runs_is_noted(archive_at: Archives, tmp_path: Path) -> None:
    path, log = archive_at("a"), SimulatedLog(Store(tmp_path))
    await log.create_topics(topics_of_one_partition())
    await log.append(_outcomes("run-0"))
    async with Archiver(log, path) as archiver:
        await until(lambda: archiver.records == EACH, archiver)
        # Both are handed over in one turn of the loop: the archiver reads before both or after both.
        await asyncio.gather(log.store.local.append(_outcomes("run-1")), log.delete_before({AT: EACH + 5}))
        await until(lambda: archiver.records == 2 * EACH - 5, archiver)
    assert _missing(path) == [("game-outcomes", 0, EACH, EACH + 5)]
    await log.store.local.close()


@FILE_OR_LONG
@pytest.mark.parametrize("killed", [False, True])
async def test_markers_of_transactions_are_no_missing_records(
    archive_at: Archives, tmp_path: Path, killed: bool
) -> None:
    """Also where the archiver dies once it has stored a batch, and retention is faster than its restart."""
    path, log = archive_at("a"), SimulatedLog(Store(tmp_path, transaction_markers=True))
    await log.create_topics(topics_of_one_partition())
    producer = await log.producer("one")
    async with producer.transaction() as transaction:
        await transaction.append(_outcomes("run-0"))
    assert (await log.end_offsets(AT.topic))[AT] > EACH

    def end(written: Written) -> None:
        if killed:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed") if killed else contextlib.nullcontext():
        await archive_all(log, path, on_flush=end)
    await log.delete_before(await log.end_offsets(AT.topic))  # as a broker deletes a whole segment
    await archive_all(log, path)
    assert _missing(path) == []
    await log.store.local.close()


def test_verify_report_export_and_sql_say_what_is_missing(tmp_path: Path) -> None:
    async def record(log: LocalLog) -> dict[TopicPartition, int]:
        await record_run(log, "run-a")
        ends = await log.end_offsets(Trajectory.TOPIC)
        gone = {at: end // 2 for at, end in ends.items() if end > 1}
        await log.delete_before(gone)
        return gone

    gone = on_log(tmp_path, record)
    place = Place.at(tmp_path)
    archive(place)
    lines = [f"{at}: offsets 0 to {end - 1}" for at, end in sorted(gone.items())]
    notes = us.open_run("run-a", data=tmp_path).verify(games=False).notes
    assert [note.partition(" are gone")[0] for note in notes] == lines != []
    assert [
        f"{row['topic']}[{row['partition']}]: offsets {row['first_offset']} to {row['last_offset']}"
        for row in read_run(place.archive, "run-a", "a").missing
    ] == lines
    manifest = export_run(place.archive, "run-a", tmp_path / "exported", tables=["runs"])
    assert manifest.missing == [line.replace(": offsets ", "@") for line in lines]
    asked = ask(tmp_path, "sql", "SELECT 1 AS one")
    assert asked.stdout == "one\n1\n"
    assert f"trajectories ({sum(gone.values())})" in asked.stderr
