"""The hosts of the stream processors on the same input: Faust against generic, Kafka against the local log.

Run ``python -m benchmarks.processor_hosts``. Rates are trajectories and outcomes a second, from the first
batch that was processed to the last; joining the group and restoring state are left out. Every round
processes the same records again from the beginning. The broker is started on loopback (Java and Maven needed)
and shares this machine with the hosts.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.harness import compare, kafka_broker, parser, report
from benchmarks.processor_fold import RUN, SHAPES, outcomes, trajectories
from infra.kafka.brokers import why_unavailable
from unstable_stream.events import decode_event
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog, Record
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.faust import run_on_faust
from unstable_stream.services.streams.processors import PROCESSORS, fold_sinks, host_processors
from unstable_stream.services.streams.run_configs import RunDirectory

_DEADLINE_S = 300.0


async def fill(log: EventLog, games: int) -> None:
    """Append two trajectories and an outcome for each game."""
    await log.create_topics(list(load_topics().values()))
    config = parse_config({"model": "tiny-player", "train_envs": [{"env_id": "SimpleTak-v0-train"}]})
    await start_run(log, config, RUN)
    encoded = [*trajectories(games, *SHAPES["tiny player"]), *outcomes(games, 2)]
    records = []
    for number, record in enumerate(record_from_event(decode_event(data)) for data in encoded):
        # The games are of one environment; a run of eight would fill eight partitions.
        partition = number // 2 % 8 if record.topic == "trajectories" else None
        records.append(
            Record(record.topic, record.key, record.value, record.headers, record.timestamp_ms, partition)
        )
    for first in range(0, len(records), 500):
        await log.append(records[first : first + 500])


async def process(location: str, data: DataDir, runtime: str, games: int) -> float:
    """Host both processors until all is processed; return the rate."""
    async with opened_log(location, data.log) as log:
        await _rewind(log)
        stop = asyncio.Event()
        async with RunDirectory(log) as runs:
            sinks = await fold_sinks(log, runs, RUN)
            serve: Awaitable[None] = (
                run_on_faust(sinks, location, stop=stop, drain=False)
                if runtime == "faust"
                else host_processors(sinks, stop=stop, drain=False)
            )
            serving = asyncio.ensure_future(serve)
            rate = await _watch(lambda: sum(sum(sink.positions().values()) for sink in sinks), 3 * games)
            stop.set()
            await serving
        return rate


async def _rewind(log: EventLog) -> None:
    producer = await log.producer("bench-rewind")
    for spec in PROCESSORS:
        begin = {at: 0 for topic in spec.inputs for at in await log.end_offsets(topic)}
        async with producer.transaction() as transaction:
            await transaction.commit_positions(f"{spec.name}/{RUN}", begin)
    await producer.close()


async def _watch(processed: Callable[[], int], total: int) -> float:
    async with asyncio.timeout(_DEADLINE_S):
        while processed() == 0:
            await asyncio.sleep(0.001)
        first, began = processed(), time.perf_counter()
        while processed() < total:
            await asyncio.sleep(0.005)
    return (total - first) / (time.perf_counter() - began)


def main() -> None:
    """Measure and report."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--games", type=int, default=4000, help="three records each")
    options = arguments.parse_args()
    reason = why_unavailable()
    if reason is not None:
        print(f"not measured: {reason}")
        return
    with tempfile.TemporaryDirectory() as directory, kafka_broker(None) as bootstrap:
        location, data = f"kafka://{bootstrap}", DataDir(Path(directory))
        for each in (location, "local"):
            asyncio.run(_fill_at(each, data, options.games))

        def rate(where: str, runtime: str) -> Callable[[], float]:
            return lambda: asyncio.run(process(where, data, runtime, options.games))

        results = [
            compare(name, ours, baseline, unit="events/s", rounds=options.rounds)
            for name, ours, baseline in (
                ("Faust against generic, Kafka", rate(location, "faust"), rate(location, "generic")),
                ("Kafka against local, generic", rate(location, "generic"), rate("local", "generic")),
            )
        ]
    report("Hosts of the stream processors", results, options.json)


async def _fill_at(location: str, data: DataDir, games: int) -> None:
    async with opened_log(location, data.log) as log:
        await fill(log, games)


if __name__ == "__main__":
    main()
