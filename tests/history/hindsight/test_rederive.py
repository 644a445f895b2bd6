"""Shaping a run's rewards anew: nothing differs under the same transformations, what it must under others."""

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.history.proofs.recorded_run import events_of, record_run, small_config
from tests.places import on_log
from unstable_stream.algorithms.update_decisions import drawn_ids
from unstable_stream.archive import QueryResult
from unstable_stream.archive.what_if import open_set
from unstable_stream.errors import ConfigError
from unstable_stream.events import LearnerUpdate, Step, Trajectory
from unstable_stream.history.hindsight.rederive import Rederived, RewardChange, load_rewards, rederive
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.runs.data_dir import DataDir

SHAPED, PLAIN = "run-shaped", "run-plain"
CONFIGS = {SHAPED: small_config(), PLAIN: small_config(rewards={"final": [], "step": [], "sampling": []})}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of two runs, one of which shaped no rewards."""
    data = tmp_path_factory.mktemp("shaped")
    for run_id, config in CONFIGS.items():
        on_log(data, lambda log, run=run_id, of=config: record_run(log, run, of, hosted=False))  # type: ignore[misc]
    return DataDir(data).log


@pytest.fixture
async def log(recorded: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(recorded) as opened:
        yield opened


async def shape(log: EventLog, run_id: str, **stages: Any) -> tuple[Rederived, QueryResult, QueryResult]:
    """Rederive with other stages; return what came of it, the steps and the advantages."""
    config = CONFIGS[run_id]
    with open_set(None) as out:
        done = await rederive(log, run_id, config, config.rewards.model_copy(update=stages), out)
        return done, out.query("FROM steps"), out.query("FROM advantages")


def change_of(done: Rederived, stage: str, role: str = "*") -> RewardChange:
    (change,) = [each for each in done.changes if (each.stage, each.role) == (stage, role)]
    return change


async def steps_of(log: EventLog, run_id: str) -> dict[str, Step]:
    return {event.event_id: event for event in await events_of(log, run_id, Step)}


async def test_the_same_transformations_give_the_recorded_rewards_to_the_last_bit(log: LocalLog) -> None:
    done, steps, advantages = await shape(log, SHAPED)
    known = await steps_of(log, SHAPED)
    assert done.steps == len(known) > 100
    assert (done.differing, done.updates) == (0, 3)
    found = {row["step_id"]: row for row in steps.dicts()}
    assert found.keys() == known.keys()
    for step_id, row in found.items():
        assert row["reward"] == row["reward_used"]
        assert row["final_reward"] == row["final_reward_used"]
        for name in ("reward", "final_reward", "raw_reward", "seat", "turn_index"):
            assert row[name] == getattr(known[step_id], name)
    assert all(row["advantage"] == row["advantage_used"] for row in advantages.dicts())
    for change in done.changes:
        assert not any((change.differing, change.sign_flips, change.mean, change.lowest, change.highest))


async def test_a_penalty_for_invalid_moves_changes_these_turns_by_itself(log: LocalLog) -> None:
    done, steps, _ = await shape(log, PLAIN, step=({"type": "PenaltyForInvalidMove", "penalty": -1.5},))
    invalid: dict[tuple[str, int], float] = {}
    for event in await events_of(log, PLAIN, Trajectory):
        for turn in event.turns:
            if not turn.valid:
                invalid[event.event_id, turn.turn_index] = event.reward
    assert invalid
    change = change_of(done, "step")
    assert change.differing == len(invalid)
    assert change.steps == done.steps
    assert (change.lowest, change.highest) == (-1.5, 0.0)
    assert change.mean == pytest.approx(-1.5 * len(invalid) / done.steps)
    assert change.sign_flips == sum(reward >= 0 for reward in invalid.values())
    assert change_of(done, "final").differing == 0
    for row in steps.dicts():
        expected = -1.5 if (row["trajectory_id"], row["turn_index"]) in invalid else 0.0
        assert row["reward"] - row["reward_used"] == expected


async def test_role_baselines_are_told_apart_by_role(log: LocalLog) -> None:
    baselines = {"type": "RoleAdvantageFormatter", "default_role_adv": 0.25, "tau": 1e-9}
    done, _, _ = await shape(log, PLAIN, final=(baselines,))
    roles = [each.role for each in done.changes if each.stage == "final"]
    assert roles[0] == "*"
    assert len(roles) > 2
    assert roles == sorted(roles)
    for role in roles:
        change = change_of(done, "final", role)
        assert change.differing == change.steps
        assert change.median == pytest.approx(-0.25, abs=1e-6), "the baseline hardly moves"
    assert sum(change_of(done, "final", role).steps for role in roles[1:]) == done.steps


async def test_advantages_are_those_of_the_batches_that_were_trained_on(log: LocalLog) -> None:
    done, _, advantages = await shape(log, PLAIN, sampling=({"type": "NormalizeRewards", "z_score": True},))
    known = await steps_of(log, PLAIN)
    rows = {(row["update"], row["step_id"]): row for row in advantages.dicts()}
    drawn = 0
    for update in await events_of(log, PLAIN, LearnerUpdate):
        batch = drawn_ids(update)
        rewards = [known[step_id].reward for step_id in batch]
        mean = math.fsum(rewards) / len(rewards)
        deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
        for step_id, reward in zip(batch, rewards, strict=True):
            row = rows[update.update, step_id]
            assert row["advantage_used"] == reward
            assert row["advantage"] == pytest.approx((reward - mean) / (deviation + 1e-8))
        drawn += len(batch)
    assert len(rows) == drawn == change_of(done, "advantage").steps
    assert done.differing == 0, "the steps themselves are as they were"


async def test_a_run_without_games_has_nothing_to_change(tmp_path: Path) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await record_run(log, SHAPED, games=0, hosted=False, updates=False)
        done, steps, advantages = await shape(log, SHAPED)
    assert (done.steps, done.updates, done.changes) == (0, 0, [])
    assert (steps.rows, advantages.rows) == ([], [])


def test_stages_that_are_not_in_the_file_stay_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text('name = "a whole configuration"\n[rewards]\nsampling = []\n')
    config = small_config()
    rewards = load_rewards(path, config)
    assert rewards.sampling == ()
    assert (rewards.final, rewards.step) == (config.rewards.final, config.rewards.step)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("final = []", r"new.toml: expected a \[rewards\] table"),
        (
            "[rewards]\nfinl = []",
            r"new.toml: unknown key 'rewards.finl', did you mean final\?; known here: final",
        ),
        ("[rewards", "new.toml: not valid TOML"),
        (None, "cannot read .*new.toml: No such file"),
    ],
)
def test_a_file_that_says_no_rewards_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "new.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_rewards(path, small_config())


async def test_an_unknown_transformation_is_refused(log: LocalLog) -> None:
    with pytest.raises(ConfigError, match="NoSuchTransform"):
        await shape(log, SHAPED, step=({"type": "NoSuchTransform"},))
