"""What proves a run of the lab: its archive against its log, then ``audit`` and ``verify``.

Where the archive is shared, the log loses its trajectories and steps in between, as when they expire. So
``audit`` and ``verify`` read them from the archive.
"""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka import TopicPartition as KafkaPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from tools.lab.cluster import Lab, LabError
from unstable_stream.events import Step, Trajectory
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog, Positions, TopicPartition
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.topics import load_topics
from unstable_stream.services.workers.retention import ARCHIVER_GROUP

DEADLINE_S: Final = 600.0
_TRIES: Final = 5
"""Processors may still publish what follows from the last games; what was left out stays left out."""
_EXPIRING: Final = (Trajectory.TOPIC, Step.TOPIC)
_HELD: Final = (
    'SELECT topic, "partition", count(*), count(DISTINCT "offset"), sum("offset") FROM events '
    "GROUP BY ALL ORDER BY ALL"
)
_ROW: Final = re.compile(r"^([a-z-]+),(\d+),(\d+),(\d+),(\d+)\r?$", re.MULTILINE)
_LOOKS_EVERY_S: Final = 0.5


class Held(NamedTuple):
    """What is held of one partition."""

    records: int
    offsets: int
    """Different ones: fewer than records where one is held twice."""
    sum_of_offsets: int


class HeldByLog(NamedTuple):
    """What a log holds at one moment."""

    held: Mapping[TopicPartition, Held]
    ends: Positions
    compacted: set[str]
    """The topics of which it may hold less than was recorded."""


class Proof(NamedTuple):
    """What one proof found."""

    name: str
    verdict: str
    """In a word or two, for a table."""
    said: str
    failed: bool


def prove_run(lab: Lab) -> list[Proof]:
    """Prove the lab's run, which has ended; the archivers end with it."""
    log = HeldByLog({}, {}, set())
    try:
        lab.stop_archivers(DEADLINE_S)
        for _ in range(_TRIES):
            lab.archive_rest(DEADLINE_S)
            log = asyncio.run(_held_by_log(lab.log))
            wrong = lacking(log.held, held_by_archive(lab.ask_archive(_HELD)), log.compacted)
            if not wrong:
                break
    except (LabError, subprocess.TimeoutExpired) as error:
        wrong = [str(error)]
    proofs = [_of_archive(lab, log, wrong)]
    if lab.shared and not wrong:
        asyncio.run(_expire(lab, log.ends))
    for command in ("audit", "verify"):
        status, said = lab.prove(command)
        proofs.append(Proof(command, said.rstrip().rpartition(" ")[2], said, status != 0))
    return proofs


def _of_archive(lab: Lab, log: HeldByLog, wrong: Sequence[str]) -> Proof:
    kind = "shared archive" if lab.shared else "archive"
    if wrong:
        return Proof("archive", f"{kind} differs", "\n".join(wrong), True)
    records = sum(held.records for held in log.held.values())
    return Proof("archive", f"{kind} whole", f"{records:,} records in the log, and in the archive", False)


def held_by_archive(csv: str) -> dict[TopicPartition, Held]:
    """Read the answer to the question what the archive holds, and pass over what else the program said."""
    return {
        TopicPartition(topic, int(partition)): Held(*map(int, counts))
        for topic, partition, *counts in _ROW.findall(csv)
    }


async def _held_by_log(location: str) -> HeldByLog:
    found: dict[TopicPartition, Held] = {}
    async with opened_log(location, Path(os.devnull)) as log:
        settings = await log.topic_settings()
        topics = sorted(load_topics().keys() & settings.keys())
        ends = {at: end for topic in topics for at, end in (await log.end_offsets(topic)).items()}
        async for record in read_to_end(log, topics, ends=ends):
            at = TopicPartition(record.topic, record.partition)
            held = found.get(at, Held(0, 0, 0))
            found[at] = Held(held.records + 1, held.offsets + 1, held.sum_of_offsets + record.offset)
    compacted = {topic for topic in topics if settings[topic].cleanup_policy == "compact"}
    return HeldByLog(found, ends, compacted)


def lacking(
    log: Mapping[TopicPartition, Held], archive: Mapping[TopicPartition, Held], compacted: set[str]
) -> list[str]:
    """Return in words where the archive has not exactly the records of the log; empty: nowhere.

    Of topics that the log compacts, the archive may have more.
    """
    wrong = []
    for at in sorted(log.keys() | archive.keys()):
        nothing = Held(0, 0, 0)
        ours, theirs = log.get(at, nothing), archive.get(at, nothing)
        more = at.topic in compacted and theirs.offsets >= ours.offsets and theirs.offsets == theirs.records
        if ours != theirs and not more:
            wrong.append(f"{at}: the log holds {ours}, the archive {theirs}")
    return wrong


async def _expire(lab: Lab, ends: Positions) -> None:
    """Delete trajectories and steps up to these positions from the log."""
    admin = AIOKafkaAdminClient(bootstrap_servers=lab.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records(
            {
                KafkaPartition(*at): RecordsToDelete(end)
                for at, end in ends.items()
                if end and at.topic in _EXPIRING
            }
        )
    finally:
        await admin.close()


async def await_archived(lab: Lab) -> float:
    """Wait until all that the log holds now is archived; return how long that took, in seconds.

    Raises:
        LabError: it is not within the deadline.
    """
    begun = time.monotonic()
    async with opened_log(lab.log, Path(os.devnull)) as log:
        topics = sorted(load_topics().keys() & (await log.topics()).keys())
        ends = [end for topic in topics for end in (await log.end_offsets(topic)).items()]
        groups = await _groups(lab)
        while behind := await _behind(log, groups, ends):
            if time.monotonic() - begun > DEADLINE_S:
                raise LabError(f"{behind[0]} is not archived within {DEADLINE_S:g} s")
            await asyncio.sleep(_LOOKS_EVERY_S)
    return time.monotonic() - begun


async def _groups(lab: Lab) -> list[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=lab.kafka.bootstrap)
    await admin.start()
    try:
        listed = await admin.list_consumer_groups()
    finally:
        await admin.close()
    return [str(group[0]) for group in listed if str(group[0]).startswith(f"{ARCHIVER_GROUP}-")]


async def _behind(
    log: EventLog, groups: Sequence[str], ends: Sequence[tuple[TopicPartition, int]]
) -> list[TopicPartition]:
    done: dict[TopicPartition, int] = {}
    for group in groups:
        for at, position in (await log.committed_positions(group)).items():
            done[at] = max(position, done.get(at, 0))
    return [at for at, end in ends if done.get(at, 0) < end]
