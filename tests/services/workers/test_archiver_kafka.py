"""The archiver on a real broker: markers between the records, and killed archivers."""

import asyncio
import contextlib
import dataclasses
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.archive.content import content, typed_content
from tests.archive.history import made_up_run
from tests.services.workers.archiving import archive_all, publish
from tests.tiers import chosen
from unstable_stream.archive import query
from unstable_stream.events import Event, Rating
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Record
from unstable_stream.log.reading import ends_of
from unstable_stream.log.records import record_from_event
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.log.stores.store import Store
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.services.workers.retention import ARCHIVER_GROUP

_ROOT = Path(__file__).resolve().parents[3]
_CHUNK = 25
_TAKEN_OVER_S = 400
"""On a machine with much other work; the session of who fell ends after 6."""


@dataclasses.dataclass(frozen=True)
class _Topics:
    """Our topics under names of this test's own."""

    log: EventLog
    suffix: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def names(self) -> list[str]:
        return [f"{name}-{self.suffix}" for name in load_topics()]

    async def create(self) -> None:
        specs = load_topics()
        await self.log.create_topics(
            [dataclasses.replace(spec, name=f"{spec.name}-{self.suffix}") for spec in specs.values()]
        )
        # Where the archiver's own letters go.
        await self.log.create_topics([specs["dead-letters"]])

    def record(self, record: Record) -> Record:
        return msgspec.structs.replace(record, topic=f"{record.topic}-{self.suffix}")

    async def publish(self, events: Sequence[Event], *, aborted: Sequence[Event] = ()) -> None:
        """Append transaction by transaction, so that markers lie between the records; some in vain."""
        producer = await self.log.producer(f"archive-test-{self.suffix}")
        for start in range(0, len(events), _CHUNK):
            async with producer.transaction() as transaction:
                chunk = events[start : start + _CHUNK]
                await transaction.append([self.record(record_from_event(event)) for event in chunk])
            with contextlib.suppress(RuntimeError):
                async with producer.transaction() as transaction:
                    await transaction.append([self.record(record_from_event(event)) for event in aborted])
                    raise RuntimeError("changed my mind")
        await producer.close()


@pytest.fixture
async def log(kafka_bootstrap: str) -> AsyncIterator[KafkaLog]:
    log = KafkaLog.open(f"kafka://{kafka_bootstrap}")
    yield log
    await log.close()


@pytest.fixture
async def topics(log: KafkaLog) -> _Topics:
    topics = _Topics(log)
    await topics.create()
    return topics


async def _archive_all(log: EventLog, names: Sequence[str] | None, path: ArchiveAddress) -> int:
    return sum(await archive_all(log, path, topics=names, max_batch=60))


def _run_without_ratings(suffix: str) -> list[Event]:
    """The topic ``ratings`` is compacted: what is left of it depends on when one looks."""
    return [event for event in made_up_run(f"run-{suffix}") if not isinstance(event, Rating)]


async def _archived_locally(events: Sequence[Event], directory: Path) -> Path:
    log = LocalLog.open(directory / "log.sqlite", synchronous="NORMAL")
    await create_declared_topics(log, load_topics())
    await publish(log, events)
    await _archive_all(log, None, directory / "local.duckdb")
    await log.close()
    return directory / "local.duckdb"


async def test_the_same_tables_from_kafka_as_from_the_local_log(
    log: KafkaLog, topics: _Topics, tmp_path: Path
) -> None:
    events = made_up_run(f"run-{topics.suffix}")
    await topics.publish(events, aborted=made_up_run("never", updates=1)[:5])
    path = tmp_path / "kafka.duckdb"
    archived = await _archive_all(log, topics.names, path)
    assert len(_run_without_ratings(topics.suffix)) < archived <= len(events)
    assert await _archive_all(log, topics.names, path) == 0
    local = await _archived_locally(events, tmp_path)
    found, expected = typed_content(path), typed_content(local)
    # Compaction keeps the latest rating of each model, and that is the ladder.
    ladder = "SELECT env_id, model_uid, mu, sigma FROM rating_ladder ORDER BY ALL"
    found["ratings"], expected["ratings"] = ([*map(str, query(each, ladder).rows)] for each in (path, local))
    assert found == expected
    log_id = await log.log_id()
    assert query(path, "SELECT DISTINCT log_id FROM positions").rows == [(log_id,)]
    # For whoever watches the lag: read to the very end, markers and all.
    ((archive_id,),) = query(path, "SELECT archive_id FROM schema_version").rows
    committed = await log.committed_positions(f"{ARCHIVER_GROUP}-{archive_id}")
    ends = await ends_of(log, topics.names)
    assert {where: committed.get(where, 0) for where in ends} == ends


_MEMBER = """
import asyncio, os, signal, sys
from pathlib import Path
from unstable_stream.archive.shared.table import SharedTable
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.services.workers.archiver import ArchiveSink, run_archiver

location, archive, trap, step, number, *topics = sys.argv[1:]

commit = SharedTable.commit
def interrupted(self, files, *args, **options):
    # Another member may be first: then nothing is committed, and it is not yet time.
    done = step == "all written" or commit(self, files, *args, **options)
    if done and any(file.relation == "events" for file in files) and Path(trap).exists():
        Path(trap).rename(trap + "-sprung")
        print("sprung", flush=True)
        os.kill(os.getpid(), int(number))
    return commit(self, files, *args, **options) if step == "all written" else done
if step != "none":
    SharedTable.commit = interrupted

follow, followed = ArchiveSink.follow, None
async def following(self, assigned):
    global followed
    starts = await follow(self, assigned)
    if assigned != followed:
        followed = set(assigned)
        print("follows", len(assigned), flush=True)
    return starts
ArchiveSink.follow = following

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    log = KafkaLog.open(location, session_timeout_s=6.0)
    def flushed(written):
        print("flushed", written.records, flush=True)
    await run_archiver(log, archive, topics=topics, stop=stop, flush_interval_s=0.02, max_batch=20,
                       on_flush=flushed)
    await log.close()

asyncio.run(main())
"""


@dataclasses.dataclass(frozen=True)
class _Member:
    """An archiver of a group, in a process of its own."""

    process: asyncio.subprocess.Process

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, *arguments: str, step: str = "none", number: int = 0) -> "AsyncIterator[_Member]":
        location, archive, trap, *names = arguments
        command = (sys.executable, "-c", _MEMBER, location, archive, trap, step, str(number), *names)
        process = await asyncio.create_subprocess_exec(*command, cwd=_ROOT, stdout=asyncio.subprocess.PIPE)
        try:
            yield cls(process)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def says(self, what: str) -> int:
        """Wait until it does; return the number that it says."""
        assert self.process.stdout is not None
        while True:
            line = (await self.process.stdout.readline()).decode().split()
            assert line, f"the archiver ended before it {what}"
            if line[0] == what:
                return int(line[-1]) if len(line) > 1 else 0

    async def end(self) -> None:
        self.process.terminate()
        assert self.process.stdout is not None
        await self.process.stdout.read()  # a full pipe would hold it up
        assert await self.process.wait() == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@chosen(
    "step, number, place",
    [("all written", signal.SIGKILL, "directory")],
    [
        ("committed", signal.SIGKILL, "directory"),
        ("committed", signal.SIGKILL, "s3"),
        # Taken for dead, it comes back, with files that it is about to commit.
        ("all written", signal.SIGSTOP, "directory"),
    ],
)
async def test_one_of_two_archivers_falls_between_two_steps_and_the_other_takes_over(
    step: str,
    number: signal.Signals,
    place: str,
    log: KafkaLog,
    topics: _Topics,
    tmp_path: Path,
    kafka_bootstrap: str,
    request: pytest.FixtureRequest,
) -> None:
    events = _run_without_ratings(topics.suffix)
    third = len(events) // 3
    shared = f"delta:{tmp_path / 'shared'}"
    if place == "s3":
        (tmp_path / "first").touch()
        store: str = request.getfixturevalue("s3")
        Store(store).put(tmp_path / "first", "first")  # makes the bucket
        shared = f"delta:{store}/shared"
    trap = tmp_path / "trap"
    arguments = (f"kafka://{kafka_bootstrap}", shared, str(trap), *topics.names)
    partitions = len(await ends_of(log, topics.names))
    async with asyncio.timeout(_TAKEN_OVER_S), contextlib.AsyncExitStack() as members:
        await topics.publish(events[:third], aborted=events[:3])
        falling = await members.enter_async_context(_Member.started(*arguments, step=step, number=number))
        await falling.says("flushed")
        other = await members.enter_async_context(_Member.started(*arguments))
        while not 0 < await other.says("follows") < partitions:
            pass
        trap.touch()
        await topics.publish(events[third : 2 * third], aborted=events[:3])
        await falling.says("sprung")
        await topics.publish(events[2 * third :])
        while await other.says("follows") < partitions:
            pass
        if number == signal.SIGKILL:
            assert await falling.process.wait() == -signal.SIGKILL
        else:
            while _archived(shared) < len(events):
                await other.says("flushed")
            falling.process.send_signal(signal.SIGCONT)
            await falling.end()
        await other.end()
        # They left nothing out, markers between the records included.
        assert await _archive_all(log, topics.names, shared) == 0
        alone = tmp_path / "alone.duckdb"
        assert await _archive_all(log, topics.names, alone) == len(events)
    assert content(shared) == content(alone)
    numbers = query(shared, "SELECT count(*), count(DISTINCT record_number) FROM events").rows
    assert numbers == [(len(events), len(events))]


def _archived(archive: ArchiveAddress) -> int:
    ((count,),) = query(archive, "SELECT count(*) FROM events").rows
    return int(count)
