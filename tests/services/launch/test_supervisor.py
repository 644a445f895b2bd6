"""The supervisor restarts what dies, gives up with the reason, and stops services in peace if it can."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.processes import still_runs, until
from unstable_stream.errors import FencedError, ServiceError
from unstable_stream.services.launch.supervisor import Supervisor, pause_s

pytestmark = pytest.mark.longer

PROGRAM = (sys.executable, str(Path(__file__).with_name("pretend_service.py")))
DEADLINE_S = 60.0
_RESTARTED = [
    f"recovers died: it ended with status 1 and printed: start {name}; starting it again ({number} of 3)"
    for number, name in enumerate("AB", 1)
]


def supervisor(directory: Path, **settings: Any) -> Supervisor:
    (directory / "logs").mkdir(exist_ok=True)
    defaults = {"max_restarts": 3, "first_delay_s": 0.01, "stop_deadline_s": DEADLINE_S}
    given: dict[str, Any] = {**defaults, **settings}
    return Supervisor([str(directory)], directory / "logs", environment={}, program=PROGRAM, **given)


async def supervised(services: Supervisor, name: str, *, essential: bool = True) -> None:
    services.start(name, essential=essential)
    await asyncio.wait_for(services.wait([name]), DEADLINE_S)


def starts(directory: Path, name: str) -> list[int]:
    path = directory / f"{name}.starts"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_a_service_that_dies_is_started_again_until_it_ends_well(tmp_path: Path) -> None:
    services = supervisor(tmp_path)
    await services.stop("recovers")  # never started: no error
    await supervised(services, "recovers")
    assert len(set(starts(tmp_path, "recovers"))) == 3
    assert (services.services["recovers"].restarts, services.services["recovers"].pid) == (2, None)
    notes = (tmp_path / "logs" / "launcher.log").read_text().splitlines()
    assert [note.split(" ", 1)[1] for note in notes] == _RESTARTED
    await services.stop("recovers")


async def test_on_a_full_disk_it_starts_a_service_again_without_its_note(tmp_path: Path) -> None:
    services = supervisor(tmp_path)
    (tmp_path / "logs" / "launcher.log").symlink_to("/dev/full")
    with capture_logs() as lines:
        await supervised(services, "recovers")
    assert [line["event"] for line in lines] == _RESTARTED
    assert {line["not_noted"] for line in lines} == {"[Errno 28] No space left on device"}


async def test_a_service_that_cannot_be_started_ends_the_run(tmp_path: Path) -> None:
    services = supervisor(tmp_path)
    (tmp_path / "logs" / "recovers.log").symlink_to(tmp_path / "gone" / "recovers.log")
    with pytest.raises(ServiceError, match=r"recovers could not be started: .*No such file"):
        await supervised(services, "recovers")


@pytest.mark.parametrize(
    ("behaviour", "said", "count"),
    [
        ("dies", r"dies died: LearnerError: it went wrong \(all of it: .*; dies ended after 2 restarts", 3),
        ("crashes", r"crashes died: killed by SIGABRT: no core .* after 2 restarts", 3),
        ("log-too-short", r"is out of range.* not started again before that is mended", 1),
    ],
)
async def test_it_gives_up_after_max_restarts_or_where_something_is_missing_and_says_why(
    tmp_path: Path, behaviour: str, said: str, count: int
) -> None:
    services = supervisor(tmp_path, max_restarts=2)
    services.start("waits")
    with pytest.raises(ServiceError, match=said) as raised:
        await supervised(services, behaviour, essential=behaviour != "log-too-short")
    assert str(tmp_path / "logs" / f"{behaviour}.log") in str(raised.value)
    assert len(starts(tmp_path, behaviour)) == count
    await services.stop("waits")


async def test_a_service_that_another_one_has_taken_over_from_is_not_started_again(tmp_path: Path) -> None:
    with pytest.raises(FencedError, match=r"^another learner has taken over$"):
        await supervised(supervisor(tmp_path), "fenced")
    assert len(starts(tmp_path, "fenced")) == 1


async def test_restarts_of_long_ago_do_not_count(tmp_path: Path) -> None:
    services = supervisor(tmp_path, max_restarts=1, restarts_count_s=0.0)
    await supervised(services, "recovers")  # dies twice
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


@pytest.mark.parametrize("behaviour", ["drains", "drains-badly", "stubborn"])
async def test_stop_lets_a_service_drain_and_kills_what_does_not_end_in_time(
    tmp_path: Path, behaviour: str
) -> None:
    services = supervisor(tmp_path, stop_deadline_s=0.2 if behaviour == "stubborn" else DEADLINE_S)
    services.start(behaviour)
    await until((tmp_path / f"{behaviour}.ready").exists)
    (pid,) = starts(tmp_path, behaviour)
    await services.stop(behaviour)
    assert not still_runs(pid)
    assert (tmp_path / "drained").exists() == (behaviour == "drains")
    if behaviour == "stubborn":
        note = f"stubborn (pid {pid}) did not stop within 0.2 s: killing it"
        assert note in (tmp_path / "logs" / "launcher.log").read_text()
    failure = str(services.failure or "")
    assert failure.startswith(
        "drains-badly died: it ended with status 1 and printed: the last records are not stored"
    ) == (behaviour == "drains-badly")
    assert not failure or failure.endswith("ended while it was stopped")


async def test_stop_during_the_pause_before_a_restart_ends_it(tmp_path: Path) -> None:
    services = supervisor(tmp_path, first_delay_s=600)
    services.start("dies")
    await until(lambda: services.services["dies"].restarts == 1)
    await asyncio.wait_for(services.stop("dies"), DEADLINE_S)
    assert len(starts(tmp_path, "dies")) == 1


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
