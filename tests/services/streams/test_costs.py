"""Reports of a process about what it uses."""

import threading
import time
from pathlib import Path

import pytest

from unstable_stream.events import ProcessCost
from unstable_stream.log.cpu_time import spending
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import read_to_end, readable_events
from unstable_stream.log.topics import load_topics
from unstable_stream.services.streams.costs import CostMeter, reported

RUN = "run-test"


def _compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_parts_of_threads_are_told_apart_and_no_more_than_the_whole() -> None:
    def work() -> None:
        with spending("tested"):
            _compute(0.05)

    work()  # before it begins: none of it counts
    meter = CostMeter(RUN, "inline", whole=False)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    _compute(0.02)
    cost = meter.measure()
    assert 0.05 <= cost.parts["tested"] < cost.cpu_s
    assert cost.cpu_s >= 0.07
    assert sum(cost.parts.values()) <= cost.cpu_s
    assert CostMeter(RUN, "archiver").measure().cpu_s > cost.cpu_s, "all of a process of its own"


def test_gpus_are_held_from_the_beginning_whether_used_or_not() -> None:
    moments = iter([100.0, 160.0, 220.0])
    meter = CostMeter(RUN, "engine-0", gpus=0.5, clock=lambda: next(moments))
    assert [(cost.wall_s, cost.gpu_s) for cost in (meter.measure(), meter.measure())] == [(60, 30), (120, 60)]
    assert CostMeter(RUN, "collector").measure().gpu_s == 0


async def test_a_process_reports_at_its_beginning_and_end_whatever_ends_it(tmp_path: Path) -> None:
    async def work(log: LocalLog) -> None:
        async with reported(log, CostMeter(RUN, "collector")):
            consumer = await log.consumer([ProcessCost.TOPIC])
            await consumer.poll(timeout_s=10)
            await consumer.close()
            raise ValueError("of the process itself")

    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        with pytest.raises(ValueError, match="of the process itself"):
            await work(log)
        found = list(readable_events([record async for record in read_to_end(log, [ProcessCost.TOPIC])]))
    begun, ended = (event for event in found if isinstance(event, ProcessCost))
    assert begun.incarnation == ended.incarnation
    assert begun.wall_s < ended.wall_s
    async with reported(log, CostMeter(RUN, "collector")):
        pass  # a log that takes no report ends nobody
