"""The supervisor restarts what dies, gives up with the reason, and stops services in peace if it can."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from unstable_stream.errors import FencedError, ServiceError
from unstable_stream.services.launch.supervisor import RecordedProgress, Supervisor, pause_s

pytestmark = pytest.mark.longer

PROGRAM = (sys.executable, str(Path(__file__).with_name("pretend_service.py")))
DEADLINE_S = 60.0


def supervisor(
    directory: Path,
    *,
    max_restarts: int = 3,
    stop_deadline_s: float = DEADLINE_S,
    progress: RecordedProgress | None = None,
) -> Supervisor:
    return Supervisor(
        [str(directory)],
        directory / "logs",
        max_restarts=max_restarts,
        environment={},
        progress=progress,
        program=PROGRAM,
        first_delay_s=0.01,
        stop_deadline_s=stop_deadline_s,
    )


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def starts(directory: Path, name: str) -> list[int]:
    path = directory / f"{name}.starts"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_a_service_that_ends_well_is_finished_and_not_started_again(tmp_path: Path) -> None:
    services = supervisor(tmp_path)
    services.start("done")
    await asyncio.wait_for(services.wait(["done"]), DEADLINE_S)
    assert len(starts(tmp_path, "done")) == 1
    assert services.services["done"].finished
    assert services.services["done"].pid is None


async def test_a_service_that_dies_is_started_again_until_it_ends_well(tmp_path: Path) -> None:
    services = supervisor(tmp_path)
    services.start("recovers")
    await asyncio.wait_for(services.wait(["recovers"]), DEADLINE_S)
    assert len(set(starts(tmp_path, "recovers"))) == 3
    assert services.services["recovers"].restarts == 2
    notes = (tmp_path / "logs" / "launcher.log").read_text().splitlines()
    assert [note.split(" ", 1)[1] for note in notes] == [
        "recovers died: it ended with status 1 and printed: start A; starting it again (1 of 3)",
        "recovers died: it ended with status 1 and printed: start B; starting it again (2 of 3)",
    ]


async def test_on_a_full_disk_it_starts_a_service_again_without_its_note(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "launcher.log").symlink_to("/dev/full")
    services = supervisor(tmp_path)
    with capture_logs() as lines:
        services.start("recovers")
        await asyncio.wait_for(services.wait(["recovers"]), DEADLINE_S)
    assert services.services["recovers"].restarts == 2
    assert [line["event"] for line in lines] == [
        "recovers died: it ended with status 1 and printed: start A; starting it again (1 of 3)",
        "recovers died: it ended with status 1 and printed: start B; starting it again (2 of 3)",
    ]
    assert {line["not_noted"] for line in lines} == {"[Errno 28] No space left on device"}


async def test_a_service_that_cannot_be_started_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "recovers.log").symlink_to(tmp_path / "gone" / "recovers.log")
    services = supervisor(tmp_path)
    services.start("recovers")
    with pytest.raises(ServiceError, match=r"recovers could not be started: .*No such file"):
        await asyncio.wait_for(services.wait(["recovers"]), DEADLINE_S)


async def test_it_gives_up_after_max_restarts_and_says_why(tmp_path: Path) -> None:
    services = supervisor(tmp_path, max_restarts=2)
    services.start("waits")
    services.start("dies")
    with pytest.raises(ServiceError) as raised:
        await asyncio.wait_for(services.wait(["waits"]), DEADLINE_S)
    log = tmp_path / "logs" / "dies.log"
    assert str(raised.value) == (
        f"dies died: LearnerError: once once once it went wrong (all of it: {log}); "
        "dies ended after 2 restarts"
    )
    assert len(starts(tmp_path, "dies")) == 3
    await services.stop("waits")


async def test_restarts_of_long_ago_do_not_count(tmp_path: Path) -> None:
    services = Supervisor(
        [str(tmp_path)],
        tmp_path / "logs",
        max_restarts=1,
        environment={},
        program=PROGRAM,
        first_delay_s=0.01,
        restarts_count_s=0.0,
    )
    services.start("recovers")  # dies twice
    await asyncio.wait_for(services.wait(["recovers"]), DEADLINE_S)
    assert services.services["recovers"].restarts == 2


def test_the_pause_grows_with_deaths_in_quick_succession_alone() -> None:
    assert pause_s(0.5, []) == 0.5
    assert pause_s(0.5, [1.0, 30.0]) == 2.0
    assert pause_s(0.5, [61.0, 300.0, 3000.0]) == 0.5
    assert pause_s(0.5, [1.0] * 5000) == 10.0


async def test_a_killed_service_comes_back(tmp_path: Path) -> None:
    services = supervisor(tmp_path)
    services.start("waits")
    await until(lambda: len(starts(tmp_path, "waits")) == 1)
    os.kill(starts(tmp_path, "waits")[0], signal.SIGKILL)
    await until(lambda: len(starts(tmp_path, "waits")) == 2)
    assert services.services["waits"].pid == starts(tmp_path, "waits")[1]
    await services.stop("waits")
    assert services.services["waits"].pid is None


class Achieved(RecordedProgress):
    """A service that has achieved something after each of its starts, up to the last of them."""

    def __init__(self, starts: int) -> None:
        self.starts = starts
        self.begun = 0

    async def begin(self, service: str) -> None:
        self.begun += 1

    async def made(self, service: str) -> bool:
        return self.begun <= self.starts


async def test_the_same_failure_twice_without_progress_between_ends_the_run(tmp_path: Path) -> None:
    services = supervisor(tmp_path, max_restarts=5, progress=Achieved(0))
    services.start("dies-alike")
    with pytest.raises(ServiceError) as raised:
        await asyncio.wait_for(services.wait(["dies-alike"]), DEADLINE_S)
    log = tmp_path / "logs" / "dies-alike.log"
    assert str(raised.value) == (
        f"dies-alike died: LearnerError: it went wrong (all of it: {log}); "
        "dies-alike ended twice in the same way, with nothing achieved between"
    )
    assert len(starts(tmp_path, "dies-alike")) == 2


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ("dies-elsewhere", "LearnerError: cannot allocate 2 GB"),  # 1 GB before
        ("crashes", "killed by SIGABRT: no core"),  # what was printed last
    ],
)
async def test_numbers_and_addresses_make_no_other_failure(tmp_path: Path, behaviour: str, says: str) -> None:
    services = supervisor(tmp_path, max_restarts=5, progress=Achieved(0))
    services.start(behaviour)
    with pytest.raises(ServiceError, match=rf"{behaviour} died: {says} .* twice in the same way"):
        await asyncio.wait_for(services.wait([behaviour]), DEADLINE_S)


async def test_whoever_would_go_on_without_what_is_missing_is_not_started_again(tmp_path: Path) -> None:
    services = supervisor(tmp_path, max_restarts=5, progress=Achieved(3))
    services.start("log-too-short", essential=False)
    with pytest.raises(ServiceError, match=r"is out of range.* not started again before that is mended"):
        await asyncio.wait_for(services.wait(["log-too-short"]), DEADLINE_S)
    assert len(starts(tmp_path, "log-too-short")) == 1


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [("killed", "killed by SIGKILL"), ("store-away", "StoreUnavailableError: s3://runs is away")],
)
async def test_what_may_pass_is_tried_until_the_last_restart(
    tmp_path: Path, behaviour: str, says: str
) -> None:
    services = supervisor(tmp_path, max_restarts=3, progress=Achieved(0))
    services.start(behaviour)
    with pytest.raises(ServiceError, match=rf"{behaviour} died: {says} .* after 3 restarts$"):
        await asyncio.wait_for(services.wait([behaviour]), DEADLINE_S)
    assert len(starts(tmp_path, behaviour)) == 4


async def test_the_same_failure_after_progress_is_one_of_those_that_come_and_go(tmp_path: Path) -> None:
    services = supervisor(tmp_path, max_restarts=5, progress=Achieved(3))
    services.start("dies-alike")
    with pytest.raises(ServiceError, match="twice in the same way"):
        await asyncio.wait_for(services.wait(["dies-alike"]), DEADLINE_S)
    assert len(starts(tmp_path, "dies-alike")) == 4


async def test_a_service_that_another_one_has_taken_over_from_is_not_started_again(tmp_path: Path) -> None:
    services = supervisor(tmp_path)
    services.start("fenced")
    with pytest.raises(FencedError, match=r"^another learner has taken over$"):
        await asyncio.wait_for(services.wait(["fenced"]), DEADLINE_S)
    assert len(starts(tmp_path, "fenced")) == 1


async def test_a_drain_that_fails_is_a_failure(tmp_path: Path) -> None:
    services = supervisor(tmp_path)
    services.start("drains-badly")
    await until((tmp_path / "drains-badly.ready").exists)
    await services.stop("drains-badly")
    assert isinstance(services.failure, ServiceError)
    assert str(services.failure).startswith(
        "drains-badly died: it ended with status 1 and printed: the last records are not stored"
    )
    assert str(services.failure).endswith("ended while it was stopped")


async def test_stop_lets_a_service_drain(tmp_path: Path) -> None:
    services = supervisor(tmp_path)
    services.start("drains")
    await until((tmp_path / "drains.ready").exists)
    await services.stop("drains")
    assert (tmp_path / "drained").exists()
    assert len(starts(tmp_path, "drains")) == 1


async def test_stop_kills_what_does_not_end_in_time(tmp_path: Path) -> None:
    services = supervisor(tmp_path, stop_deadline_s=0.2)
    services.start("stubborn")
    await until((tmp_path / "stubborn.ready").exists)
    (pid,) = starts(tmp_path, "stubborn")
    await services.stop("stubborn")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (
        f"stubborn (pid {pid}) did not stop within 0.2 s: killing it"
        in (tmp_path / "logs" / "launcher.log").read_text()
    )


async def test_stop_during_the_pause_before_a_restart_ends_it(tmp_path: Path) -> None:
    services = Supervisor(
        [str(tmp_path)], tmp_path / "logs", max_restarts=5, environment={}, program=PROGRAM, first_delay_s=600
    )
    services.start("dies")
    await until(lambda: services.services["dies"].restarts == 1)
    await asyncio.wait_for(services.stop("dies"), DEADLINE_S)
    assert len(starts(tmp_path, "dies")) == 1


async def test_stopping_what_was_never_started_or_has_ended_is_no_error(tmp_path: Path) -> None:
    services = supervisor(tmp_path)
    await services.stop("done")
    services.start("done")
    await asyncio.wait_for(services.wait(["done"]), DEADLINE_S)
    await services.stop("done")


async def test_what_is_not_essential_is_given_up_and_the_run_goes_on(tmp_path: Path) -> None:
    services = supervisor(tmp_path, max_restarts=1)
    services.start("dies", essential=False)
    services.start("waits")
    notes = tmp_path / "logs" / "launcher.log"
    await until(lambda: notes.exists() and "going on without it" in notes.read_text())
    assert services.failure is None
    assert (services.services["dies"].restarts, services.services["dies"].finished) == (1, False)
    await services.stop("dies")
    await services.stop("waits")
