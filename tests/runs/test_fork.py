"""Forking a run: where it begins, what it takes over, what it refuses."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import made
from tests.services.workers.test_game_schedule import checkpoint, config, outcome, update
from unstable_stream.algorithms.learners.checkpoint import prune_optimizer_states
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import Checkpoint, Event, GameStarted, RunStarted, checkpoint_uid
from unstable_stream.history.proofs.balance import balance
from unstable_stream.history.proofs.ledger import Ledger
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.fork import Fork, check_fork, find_fork
from unstable_stream.runs.history import RunStatus, run_started
from unstable_stream.runs.recording import start_run
from unstable_stream.runs.run_view import RunView
from unstable_stream.services.workers.game_schedule import GameSchedule

PARENT = "run-test"  # of the helpers borrowed above
FORK = "run-fork"


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        yield log


def started_game(index: int, at_ms: int, split: str = "train") -> GameStarted:
    return made(GameStarted, run_id=PARENT, occurred_at_ms=at_ms, game_index=index, split=split, seats=())


async def _parent(log: LocalLog, tmp_path: Path) -> None:
    """Checkpoints 0 to 3 at those milliseconds; train games 0 to 7, two each millisecond; eval games."""
    await start_run(log, config(), PARENT)
    events: list[Event] = [checkpoint(0)]
    for iteration in range(1, 4):
        path = tmp_path / "checkpoints" / str(iteration)
        path.mkdir(parents=True)
        (path / "optimizer.pt").touch()
        events.append(msgspec.structs.replace(checkpoint(iteration), path=str(path)))
    events += [started_game(index, index // 2) for index in range(8)]
    events += [started_game(index, 0, "eval") for index in range(30)]
    await log.append([record_from_event(event) for event in events])


async def test_a_fork_takes_over_checkpoints_and_numbers(log: LocalLog, tmp_path: Path) -> None:
    await _parent(log, tmp_path)
    fork, parent_config = await find_fork(log, "run-te", 2)
    assert (fork.parent_run_id, fork.update, fork.games) == (PARENT, 2, 6)
    changed = parse_config(parent_config.model_dump(mode="json"), ["learner.learning_rate=0.5"])
    check_fork(fork, parent_config, changed)
    await start_run(log, changed, FORK, fork)

    started = await run_started(log, FORK)
    assert (started.parent_run_id, started.parent_update, started.parent_games) == (PARENT, 2, 6)
    events = [event async for _, event in events_to_end(log, ("checkpoints",))]
    mine = [e for e in events if isinstance(e, Checkpoint) and e.run_id == FORK]
    theirs = [e for e in events if isinstance(e, Checkpoint) and e.run_id == PARENT][:3]
    assert [e.iteration for e in mine] == [0, 1, 2]
    own, of_parent = (
        [(e.model_uid, e.path, e.sha256, e.parent_uid) for e in each] for each in (mine, theirs)
    )
    assert own == of_parent
    assert not {e.event_id for e in mine} & {e.event_id for e in theirs}


async def test_the_parent_does_not_delete_the_optimizer_state_that_a_fork_begins_with(
    log: LocalLog, tmp_path: Path
) -> None:
    await _parent(log, tmp_path)
    saved = [tmp_path / "checkpoints" / str(number) for number in (1, 2, 3)]
    fork, _ = await find_fork(log, PARENT, 2)
    await start_run(log, config(), FORK, fork)
    assert prune_optimizer_states(saved, keep_last=1) == [saved[0] / "optimizer.pt"]
    assert [(path / "optimizer.pt").is_file() for path in saved] == [False, True, True]


async def test_a_state_deleted_while_it_is_forked_is_an_error_that_says_so(
    log: LocalLog, tmp_path: Path
) -> None:
    await _parent(log, tmp_path)
    fork, _ = await find_fork(log, PARENT, 2)
    prune_optimizer_states([tmp_path / "checkpoints" / "2"], keep_last=0)
    with pytest.raises(RunError, match=r"optimizer state.*fork at a newer update"):
        await start_run(log, config(), FORK, fork)
    assert not [event async for _, event in events_to_end(log, ("runs",), run_id=FORK)]


async def test_what_cannot_be_forked_is_said(log: LocalLog, tmp_path: Path) -> None:
    await _parent(log, tmp_path)
    newest, _ = await find_fork(log, PARENT)
    assert (newest.update, newest.games, len(newest.checkpoints)) == (3, 8, 4)
    with pytest.raises(RunError, match=r"no checkpoint of update 9; it has those of 0, 1, 2, 3$"):
        await find_fork(log, PARENT, 9)
    (tmp_path / "checkpoints" / "2" / "optimizer.pt").unlink()
    with pytest.raises(RunError, match=r"optimizer state.*learner\.initial_lora_path="):
        await find_fork(log, PARENT, 2)
    (tmp_path / "checkpoints" / "2").rmdir()
    with pytest.raises(RunError, match="files of ckpt-000002"):
        await find_fork(log, PARENT, 2)
    await start_run(log, config(), "run-without")
    with pytest.raises(RunError, match="no checkpoint yet"):
        await find_fork(log, "run-without")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=9", "keeps its parent's seed"),
        ("lora.lora_rank=2", "keeps its parent's lora"),
        ("model=elsewhere", "keeps its parent's model"),
        ("learner.iterations=3", r"nothing is left.*learner.iterations=8"),
    ],
)
def test_a_fork_keeps_what_its_checkpoint_is_bound_to(override: str, message: str) -> None:
    fork = Fork(PARENT, 3, 0, tuple(checkpoint(i) for i in range(4)))
    with pytest.raises(ConfigError, match=message):
        check_fork(fork, config(), parse_config(config().model_dump(mode="json"), [override]))


def _fork_started(update_number: int, games: int) -> RunStarted:
    parent: dict[str, Any] = {"parent_run_id": "p", "parent_update": update_number, "parent_games": games}
    return made(RunStarted, run_id=PARENT, config=config().model_dump(mode="json"), **parent)


def test_games_are_numbered_on_and_inherited_checkpoints_are_not_evaluated_again() -> None:
    schedule = GameSchedule(PARENT, config(learner={"iterations": 5}), _fork_started(2, 40))
    for iteration in (0, 1):
        schedule.apply(checkpoint(iteration))
    assert schedule.next_games(0) == [], "the policy to go on with is not known yet"
    schedule.apply(checkpoint(2))
    games = schedule.next_games(0)
    indices = [game.game_index for game in games if game.split == "train"]
    assert indices == list(range(40, 40 + len(indices)))
    assert indices
    evaluated = []
    while games := [game for game in schedule.next_games(0) if game.split == "eval"]:
        for game in games:
            schedule.apply(game)
            schedule.apply(outcome(game))
            evaluated.append(game.evaluated_uid)
    # The first policy of the fork is measured with as many games as a first policy is.
    assert evaluated == [checkpoint_uid(2)] * 6


def test_a_forks_books_begin_where_it_does() -> None:
    ledgers = Ledger(RunStatus(PARENT)), Ledger(RunStatus(PARENT))
    view = RunView(PARENT, config())
    events: list[Event] = [_fork_started(2, 40), *(checkpoint(i) for i in range(3)), started_game(40, 5)]
    for offset, event in enumerate(events):
        for ledger in ledgers:
            ledger.apply(event, 0, offset)
        view.apply(event)
    assert balance(ledgers[0]).problems == ()
    assert (view.status.updates_before, view.update) == (2, 2)
    ledgers[1].apply(started_game(42, 5), 0, 9)
    ledgers[1].apply(update(4, 0), 0, 10)
    problems = balance(ledgers[1]).problems
    assert "game index left out: train game 41 was never started, later ones were" in problems
    assert "update left out: there is no update 3, but later ones" in problems
