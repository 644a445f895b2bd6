"""A run that was recorded has a recorded end, whenever and however often it is asked to end."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tests.processes import python
from tests.services.streams.hosted_games import events
from tests.services.workers.test_game_schedule import RUN, config
from unstable_stream.errors import RunError, ServiceError
from unstable_stream.events import RunFinished
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.placement import Machine, Placement, Share
from unstable_stream.runs.recording import start_run
from unstable_stream.services.launch import stopping
from unstable_stream.services.launch.inline import InlineServices
from unstable_stream.services.launch.launcher import Launch, SupervisedRun, _harmless
from unstable_stream.services.launch.stopping import Requests, Stop, in_thread, stopped_by_signals

DEADLINE_S = 60.0
REMEDY = "unstable-stream train --resume run-test"


@contextmanager
def disposed(
    number: int, handler: signal.Handlers | Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """The disposition of a signal for a while."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class Services(InlineServices):
    """Services of which some hold the run up: they pay no heed to a stop, or cannot be prepared."""

    def __init__(self, log: LocalLog, data: DataDir, *stubborn: str) -> None:
        placement = Placement(Share("learner"), (Share("engine 0"),), (Machine(),))
        super().__init__(log, RunContext(RUN, config(), data), "model", placement)
        self.stubborn = stubborn
        self.reached = asyncio.Event()
        """Set when the run is held up."""

    async def prepare(self, progress: Callable[[str], None]) -> None:
        if "prepare" in self.stubborn:
            self.reached.set()
            await asyncio.Event().wait()

    async def stop(self, name: str) -> None:
        if name in self.stubborn:
            self.reached.set()
        await super().stop(name)

    async def _serve(self, name: str, stop: asyncio.Event) -> None:
        await (asyncio.Event() if name in self.stubborn else stop).wait()
        if f"{name} fails" in self.stubborn:
            raise ServiceError(f"{name}: no space left")


async def nothing(services: Services, stop: Stop) -> None: ...


async def supervised(
    directory: Path,
    stubborn: tuple[str, ...],
    then: Callable[[Services, Stop], Awaitable[None]] = nothing,
    begun: Callable[[], None] = lambda: None,
) -> tuple[Launch | BaseException, list[tuple[str, str]]]:
    """Run services, do something meanwhile; return the result, and outcome and reason of recorded ends."""
    async with LocalLog.open(directory / "log.sqlite", synchronous="NORMAL") as log:
        await create_declared_topics(log, load_topics())
        await start_run(log, config(), RUN)
        services, stop = Services(log, DataDir(directory), *stubborn), Stop()
        run = SupervisedRun(log, services._run, services, stop, 0, True, REMEDY)
        running = asyncio.ensure_future(run.supervise(print, begun))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await then(services, stop)
                await asyncio.wait([running])
        finally:
            await services.close()
        result = running.exception() or running.result()
        found = await events(log, "runs")
    return result, [(event.outcome, event.reason) for event in found if isinstance(event, RunFinished)]


@pytest.mark.parametrize("stubborn", [(), ("prepare",)])
async def test_one_request_ends_it_in_order_also_while_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stubborn: tuple[str, ...]
) -> None:
    async def ask(services: Services, stop: Stop) -> None:
        stop.ask("SIGHUP", signal.SIGHUP)

    result, ends = await supervised(tmp_path, stubborn, ask)
    assert result == Launch(RUN, "stopped", signal.SIGHUP)
    assert ends == [("stopped", "SIGHUP")]
    said = capsys.readouterr().err
    assert said.startswith(f"SIGHUP: stopping run {RUN}; waiting for ")
    assert said.endswith(f"go on with: {REMEDY}\n")


@pytest.mark.parametrize("stubborn", ["learner", "processors", "archiver"])
async def test_a_second_request_ends_it_at_once_and_the_end_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stubborn: str
) -> None:
    async def ask_twice(services: Services, stop: Stop) -> None:
        stop.ask("SIGTERM", signal.SIGTERM)
        await services.reached.wait()
        stop.ask("SIGINT", signal.SIGINT)

    result, ends = await supervised(tmp_path, (stubborn,), ask_twice)
    assert result == Launch(RUN, "stopped", signal.SIGINT)
    assert ends == [("stopped", "SIGTERM")]
    if stubborn == "learner":
        assert "waiting for" in (said := capsys.readouterr().err)
        assert "learner (to finish its update)" in said


async def test_a_run_that_cannot_be_shown_has_an_end_too(tmp_path: Path) -> None:
    def fail() -> None:
        raise BrokenPipeError("the terminal was closed")

    result, ends = await supervised(tmp_path, (), begun=fail)
    assert isinstance(result, BrokenPipeError)
    assert ends == [("failed", "BrokenPipeError: the terminal was closed")]


async def test_a_service_that_fails_while_it_is_stopped_leaves_no_run_without_end(tmp_path: Path) -> None:
    async def ask(services: Services, stop: Stop) -> None:
        stop.ask("stop() was called")

    result, ends = await supervised(tmp_path, ("processors fails",), ask)
    assert isinstance(result, ServiceError)
    assert ends == [("stopped", "stop() was called")]


async def test_what_is_done_before_the_record_is_left_at_once() -> None:
    stop, never = Stop(), threading.Event()
    checking = asyncio.ensure_future(in_thread(stop, never.wait))
    try:
        for _ in range(2):
            stop.ask("SIGTERM", signal.SIGTERM)
        with pytest.raises(RunError, match="SIGTERM: ended before the run was recorded; nothing was written"):
            await asyncio.wait_for(checking, DEADLINE_S)
    finally:
        never.set()
    assert await in_thread(Stop(), divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(Stop(), divmod, 7, 0)


def test_a_closed_terminal_does_not_end_the_run() -> None:
    def fail(stage: str) -> None:
        raise OSError(5, "Input/output error")

    _harmless(fail)("starting Ray")


async def test_signals_ask_in_order_then_at_once_and_their_handlers_come_back() -> None:
    stop = Stop()
    with disposed(signal.SIGHUP, signal.SIG_DFL):
        before = [signal.getsignal(number) for number in stopping.SIGNALS]
        with stopped_by_signals(stop, Requests(apart_s=0.0)):
            signal.raise_signal(signal.SIGHUP)
            async with asyncio.timeout(DEADLINE_S):
                await stop.asked.wait()
                assert (stop.reason, stop.signal, stop.at_once.is_set()) == ("SIGHUP", signal.SIGHUP, False)
                signal.raise_signal(signal.SIGTERM)
                await stop.at_once.wait()
            assert (stop.reason, stop.signal) == ("SIGHUP", signal.SIGTERM)
        assert [signal.getsignal(number) for number in stopping.SIGNALS] == before


async def test_signals_close_together_are_one_request() -> None:
    stop = Stop()
    with stopped_by_signals(stop, Requests(apart_s=3600.0)):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.raise_signal(number)
        async with asyncio.timeout(DEADLINE_S):
            await stop.asked.wait()
        await asyncio.sleep(0)
    assert (stop.reason, stop.at_once.is_set()) == ("SIGTERM", False)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
async def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    stop = Stop()
    with disposed(number, signal.SIG_IGN):
        with stopped_by_signals(stop, Requests(apart_s=0.0)):
            signal.raise_signal(number)
            await asyncio.sleep(0)
        assert signal.getsignal(number) is signal.SIG_IGN
    assert not stop.asked.is_set()


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_third_request_ends_the_process_by_its_signal(number: signal.Signals) -> None:
    script = f"""
import signal
from unstable_stream.services.launch.stopping import Requests
requests = Requests(apart_s=0.0)
for _ in range(3):
    assert requests.take(signal.{number.name})
"""
    assert python(script).returncode == -number
