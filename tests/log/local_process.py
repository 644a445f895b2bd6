"""Processes for tests to kill: ``python -m tests.log.local_process COMMAND PATH TOPIC [ARGUMENT]``.

Each prints a line for what it did only after it is acknowledged, so a test knows what must have survived.
"""

import asyncio
import sys

from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Record, StoredRecord

BATCH = 7


def say(line: str) -> None:
    print(line, flush=True)


async def wait_for_line() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def append(log: LocalLog, topic: str, writer: str) -> None:
    """Append batches of seven for ever: ``writer:batch:index``."""
    for batch in range(1_000_000):
        values = (f"{writer}:{batch}:{index}" for index in range(BATCH))
        await log.append([Record(topic, writer, value.encode()) for value in values])
        say(str(batch))


async def append_once(log: LocalLog, topic: str, value: str) -> None:
    """Append one record as soon as a line comes in."""
    say("ready")
    await wait_for_line()
    await log.append([Record(topic, "k", value.encode())])
    say("appended")


async def consume(log: LocalLog, topic: str, group: str) -> None:
    """Read two records and commit them, read two more and never commit; then wait to be killed."""
    consumer = await log.consumer([topic], group=group)
    for round_ in range(2):
        records: list[StoredRecord] = []
        while len(records) < 2:
            records += await consumer.poll(max_records=2 - len(records))
        if round_ == 0:
            await consumer.commit(consumer.positions())
        say(" ".join(record.value.decode() for record in records))
    await asyncio.Event().wait()


async def transact(log: LocalLog, topic: str, group: str) -> None:
    """Copy ``topic`` to two topics, record by record: results and position in one transaction each."""
    consumer = await log.consumer([topic], group=group)
    producer = await log.producer(group)
    while True:
        for record in await consumer.poll(max_records=5):
            async with producer.transaction() as tx:
                await tx.append([Record(f"{topic}-a", record.key, record.value)])
                await tx.append([Record(f"{topic}-b", record.key, record.value)] * 3)
                position = dict.fromkeys(consumer.assignment(), record.offset + 1)
                await tx.commit_positions(group, position)
            say(str(record.offset))


async def main() -> None:
    command, path, topic, argument = sys.argv[1:]
    # A timeout no test waits for: a takeover that happens was seen by the process's death.
    log = LocalLog.open(path, synchronous="NORMAL", session_timeout_s=600)
    commands = {"append": append, "append-once": append_once, "consume": consume, "transact": transact}
    await commands[command](log, topic, argument)
    await log.close()


if __name__ == "__main__":
    asyncio.run(main())
