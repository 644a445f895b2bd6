"""Services report what changed, once, and keep silent when they are told to."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.builders import made
from tests.services.streams.conftest import log as log  # a fixture
from tests.services.streams.hosted_games import events
from unstable_stream.errors import LogUnavailableError
from unstable_stream.events import Metrics
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Record
from unstable_stream.services.launch.supervisor import ServiceProcess
from unstable_stream.services.streams.reports import Reporter
from unstable_stream.services.tracking.service_reports import (
    LAUNCHER,
    archived_values,
    read_archived,
    read_services,
    service_values,
)

RUN = "demo"


async def reports(log: LocalLog) -> list[Metrics]:
    return [event for event in await events(log, "metrics") if isinstance(event, Metrics)]


def test_what_the_launcher_says_is_what_is_read() -> None:
    services = {
        "learner": ServiceProcess("learner", Path("x"), restarts=2),
        "collector": ServiceProcess("collector", Path("x")),
    }
    event = made(Metrics, source=LAUNCHER, values=service_values(services))
    assert read_services(event) == {"learner": (0.0, 2.0), "collector": (0.0, 0.0)}
    assert read_archived(made(Metrics, values={})) == 0
    assert read_archived(made(Metrics, values=archived_values(7))) == 7


async def test_only_changes_are_reported_and_now_and_then_what_is_known(log: LocalLog) -> None:
    values = {"a": 1.0}
    reporter = Reporter(log, RUN, "test", lambda: values)
    for change in ({}, {}, {"a": 2.0}, {}, {"b": 1.0}):
        values |= change
        await reporter.report()
    found = await reports(log)
    assert [event.values for event in found] == [{"a": 1.0}, {"a": 2.0}, {"a": 2.0, "b": 1.0}]
    assert {(event.run_id, event.source) for event in found} == {(RUN, "test")}
    reporter = Reporter(log, RUN, "test", lambda: values, repeat_s=0.0)
    for _ in range(2):
        await reporter.report()
    assert len(await reports(log)) == 5


async def test_a_log_that_cannot_be_reached_does_not_end_the_reports(
    log: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = log.append

    async def refuse(records: Sequence[Record]) -> None:
        raise LogUnavailableError("no")

    reporter = Reporter(log, RUN, "test", lambda: {"a": 1.0})
    monkeypatch.setattr(log, "append", refuse)
    with capture_logs() as lines:
        await reporter.report()
        await reporter.report()
    assert [line["reason"] for line in lines] == ["no"], "said once"
    monkeypatch.setattr(log, "append", append)
    await reporter.report()
    assert [event.values for event in await reports(log)] == [{"a": 1.0}]


async def test_nothing_is_reported_once_the_work_is_told_to_stop(log: LocalLog) -> None:
    number = 0.0

    def measure() -> dict[str, float]:
        nonlocal number
        number += 1.0
        return {"number": number}

    stop = asyncio.Event()
    async with asyncio.timeout(120):
        reporting = asyncio.ensure_future(Reporter(log, RUN, "test", measure, every_s=0.0).run(stop))
        while len(await reports(log)) < 3:
            assert not reporting.done()
        stop.set()
        await reporting
        told = len(await reports(log))
        # The loop has turns enough for many reports, if anybody were still reporting.
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(await reports(log)) == told
