"""Calls into environments that do not return are noticed, and others are not."""

import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.processes import python
from tests.services.workers.test_rollout import ENV, games_of, read, started
from unstable_stream.events import GameAbandoned, GameOutcome, GameStarted
from unstable_stream.log.local.log import LocalLog
from unstable_stream.services.workers.rollout import HungGames

pytestmark = pytest.mark.longer


def test_a_call_that_does_not_return_is_told_with_its_game() -> None:
    told: queue.Queue[GameStarted] = queue.Queue()
    games = HungGames(0.2, told.put)
    with games.calling(started(0)):
        pass
    with games.calling(started(1)):
        assert told.get(timeout=60).game_index == 1
    games.close()
    assert told.empty()


def test_many_calls_that_return_are_none_that_hangs() -> None:
    looked = threading.Event()
    first, second = started(1), started(2)
    games = HungGames(1.0, lambda _: looked.set())
    timer = threading.Event()
    # More than the limit in all, each call well below it.
    for number in range(75):
        with games.calling(first if number % 2 else second):
            timer.wait(0.02)
    games.close()
    assert not looked.is_set()


_WORKER = """
import asyncio
import sys
import time
from pathlib import Path

from tests.services.workers.pretend_engine import PretendEngine
from tests.services.workers.test_rollout import config, started
from unstable_stream.games.environments import Environment
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.log.open import open_log_at
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.workers.rollout import end_with
from unstable_stream.services.workers.rollout import RolloutWorker


def hang(self, action):
    while True:
        time.sleep(0.1)


async def main():
    data, settings = DataDir(Path(sys.argv[1])), config()
    collector = settings.collector.model_copy(update={"env_step_timeout_s": 2.0})
    settings = settings.model_copy(update={"collector": collector})
    hung = end_with(settings, data, "Go on with: the advice")
    log = open_log_at("local", data.log)
    model, engine = resolve_model("tiny-player"), PretendEngine()
    await RolloutWorker(settings, log, model, engine).play([started(0)], {})  # imports the environment
    worker = RolloutWorker(settings, log, model, engine, hung=hung)
    Environment.step = hang
    await worker.play([started(1), started(2)], {})


asyncio.run(main())
"""


async def test_the_process_of_a_game_that_hangs_records_that_says_so_and_ends(
    tmp_path: Path, log: LocalLog
) -> None:
    """Of two games in flight the one that hangs is abandoned; the other has no end, and is played again."""
    worker = python(_WORKER, tmp_path)
    assert worker.returncode == 1, worker.stderr
    assert "Code that hangs cannot be interrupted" in worker.stderr
    assert worker.stderr.rstrip().endswith("Go on with: the advice")
    events = await read(log)
    assert games_of(events, GameOutcome) == [0]
    (abandoned,) = (event for event in events if isinstance(event, GameAbandoned))
    assert abandoned.game_index in (1, 2)
    assert f"{ENV}: its environment did not return within 2 s" in abandoned.reason


@pytest.mark.long
async def test_such_a_process_ends_also_where_it_cannot_say_so(tmp_path: Path, log: LocalLog) -> None:
    command = [sys.executable, "-c", _WORKER, str(tmp_path)]
    with Path("/dev/full").open("w") as full_disk:
        assert subprocess.run(command, stderr=full_disk, timeout=240, check=False).returncode == 1
    assert len([event for event in await read(log) if isinstance(event, GameAbandoned)]) == 1
