"""Learners fed with the history of a run: its own settings give its record, a change is found at once."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import unstable_stream as us
from tests.command_line import run_command
from tests.services.workers.test_learner_service import (
    BATCH,
    RUN,
    UPDATES,
    append,
    begun,
    config,
    new_log,
    service,
    steps,
)
from unstable_stream.algorithms import Reinforce
from unstable_stream.algorithms.base import TokenBatch
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import LearnerUpdate
from unstable_stream.history.hindsight.comparison import RECORDED, Comparison, FedUpdate
from unstable_stream.history.hindsight.learn_again import TrainingRecord, learn_again, variant_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.ordered_history import LogHistory

pytestmark = pytest.mark.longer


class ChangedLater(Reinforce):
    """One line of the loss is another from the third update on."""

    def update(self, batch: TokenBatch, *, scale: float, update: int) -> Mapping[str, Tensor]:
        return super().update(batch, scale=scale * (1.001 if update >= 3 else 1.0), update=update)


class Overflowing(Reinforce):
    """Its second update is not finite."""

    def update(self, batch: TokenBatch, *, scale: float, update: int) -> Mapping[str, Tensor]:
        return super().update(batch, scale=scale * (1.0 if update == 1 else float("inf")), update=update)


async def train(directory: Path) -> None:
    settings = config(save_every=2)
    async with begun(directory) as log:
        await start_run(log, settings, RUN)
        await append(log, steps())
        await service(directory, settings).train(log, asyncio.Event())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a run of four updates, with each second checkpoint."""
    directory = tmp_path_factory.mktemp("trained")
    asyncio.run(train(directory))
    return directory


def test_what_differs_is_found_at_the_first_update_and_a_second_time_gives_the_same_bytes(
    recorded: Path,
) -> None:
    changes: dict[str, dict[str, Any]] = {
        "same": {},
        "slow": {"learning_rate": 1e-3},
        "later": {"algorithm": ChangedLater},
        "small": {"batch_size": BATCH // 2, "iterations": 2 * UPDATES},
    }
    told: list[tuple[str, int, int]] = []
    learned = us.learn(RUN, changes, data=recorded, label="four", progress=lambda *how: told.append(how))
    assert told[UPDATES - 1 : UPDATES + 1] == [("same", 4, 4), ("slow", 1, 4)]
    assert {row.variant: row.differs_at for row in learned.rows()} == {
        RECORDED: {},
        "same": {RECORDED: None},
        "slow": {RECORDED: 1, "same": 1},
        "later": {RECORDED: 3, "same": 3, "slow": 1},
        "small": {RECORDED: 1, "same": 1, "slow": 1, "later": 1},
    }
    pairs = {(pair.one, pair.other): str(pair) for pair in learned.pairs()}
    assert pairs[RECORDED, "same"] == "same does not differ from recorded"
    slow_differs = "slow differs from same first at update 1: learning_rate is 0.001, not 0.01, loss is "
    assert pairs["same", "slow"].startswith(slow_differs)
    assert pairs["same", "slow"].endswith(" more metrics, the weights")
    assert pairs["same", "later"].startswith("later differs from same first at update 3: loss is ")
    record, same, slow, *_ = learned.rows()
    assert (record.updates, record.steps, record.effective_samples) == (UPDATES, UPDATES * BATCH, None)
    assert (same.loss, same.over_first) == (record.loss, None)
    assert slow.over_first is not None
    assert len(learned.updates["small"]) == 2 * UPDATES
    shares = [fed.effective_samples for fed in learned.updates["small"]]
    assert all(share is not None and 0 < share <= 1 for share in shares)
    again = us.learn(RUN, changes, data=recorded, label="again")
    assert learned.directory is not None
    assert again.directory is not None
    for file in ("about.json", "updates.parquet"):
        assert (learned.directory / file).read_bytes() == (again.directory / file).read_bytes()
    first = us.learn(RUN, {"slow": changes["slow"]}, data=recorded, updates=2, dry_run=True)
    assert first.updates["slow"] == learned.updates["slow"][:2], "a run that goes on has these already"


def test_a_learner_that_cannot_go_on_leaves_the_others_their_result(recorded: Path) -> None:
    learned = us.learn(RUN, {"odd": {"algorithm": Overflowing}, "same": {}}, data=recorded, dry_run=True)
    assert {row.variant: row.updates for row in learned.rows()} == {RECORDED: 4, "odd": 1, "same": 4}
    assert learned.told()[0].startswith("odd ended early: update 2: gradient norm nan")


def test_the_command_reads_files_and_draws_curves(recorded: Path, tmp_path: Path) -> None:
    for name, rate in (("slow", 1e-3), ("slower", 1e-4)):
        (tmp_path / f"{name}.toml").write_text(f"[learner]\nlearning_rate = {rate}\n")
    files = ("--config", "slow.toml", "--config", "slower.toml")
    place = ("--data", str(recorded), "--label", "by-files")
    learn = ("learn", "--from", RUN, *files, "--set", "algorithm.entropy_coef=0.02", *place)
    done = run_command(*learn, "--html", "curves.html", "--csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.partition(",")[0] for line in done.stdout.splitlines()] == [
        *("variant", RECORDED, "slow", "slower")
    ]
    assert "slower differs from slow first at update 1: learning_rate is 0.0001" in done.stderr
    page = (tmp_path / "curves.html").read_text()
    assert '"reward_gain minus slow\\u0027s"' in page
    assert "slower differs from slow first at update 1" in page
    again = run_command(*learn, cwd=tmp_path)
    assert again.stderr.startswith("error: there is a set at ")


async def test_a_fork_begins_with_the_checkpoint_before_its_first_update(recorded: Path) -> None:
    async with new_log(recorded) as log:
        history = LogHistory(log)
        record = await TrainingRecord.read(history, RUN, None, None)
        record.updates = record.updates[2:]
        own = variant_config(config().model_dump(mode="json"), {}, (), None, "own")
        fed, ended = await learn_again(history, record, "own", own, located=DataDir(recorded).located)
        assert not ended
        comparison = Comparison({RECORDED: record.fed(), "own": fed}, {})
        assert [each.update for each in fed] == [3, 4]
        assert [pair.update for pair in comparison.pairs()] == [None]
        record.checkpoints.clear()
        with pytest.raises(RunError, match="begins after update 2, and that checkpoint is not here"):
            await learn_again(history, record, "own", own)


async def test_steps_that_are_gone_are_said(tmp_path: Path) -> None:
    async with begun(tmp_path) as log:
        await start_run(log, config(), RUN)
    with pytest.raises(RunError, match="has made no update yet"):
        await asyncio.to_thread(us.learn, RUN, data=tmp_path)
    async with new_log(tmp_path) as log:
        update = LearnerUpdate(
            event_id="1", run_id=RUN, occurred_at_ms=1, update=1, step_ids=("gone",), dropped=(), loss=0.0
        )
        await append(log, [update])
    with pytest.raises(RunError, match=r"steps of update 1 are gone from this log.*--source archive"):
        await asyncio.to_thread(us.learn, RUN, data=tmp_path)
    assert [*DataDir(tmp_path).what_if(RUN).iterdir()] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"buffer": {"max_staleness": 3}}, "mine: buffer.max_staleness changes nothing here"),
        ({"rewards": {"step": [{"type": "Discount", "gamma": 0.5}]}}, "mine: rewards.step changes nothing"),
        ({"learner": {"steps": 3}}, "unknown key 'learner.steps'"),
    ],
)
def test_a_configuration_that_changes_nothing_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        variant_config(config().model_dump(mode="json"), changes, (), None, "mine")


def test_what_a_preset_does_to_steps_is_left_out() -> None:
    own = config()
    changed = variant_config(own.model_dump(mode="json"), {"algorithm": {"type": "grpo"}}, (), None, "mine")
    assert changed.rewards.final == own.rewards.final
    assert changed.rewards.sampling != own.rewards.sampling


@pytest.mark.parametrize(
    ("configs", "model", "says"),
    [
        (["a/slow.toml", "b/slow.toml"], None, "have one name"),
        ({RECORDED: {}}, None, "recorded is the run itself"),
        ({}, "red", "model 'red': the run trains one, without a name"),
        ({"fast": {"learning_rat": 1}}, None, "learning_rat"),
    ],
)
def test_what_cannot_be_meant_is_refused(recorded: Path, configs: Any, model: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        us.learn(RUN, configs, model=model, data=recorded)


def test_updates_without_tokens_have_no_estimate() -> None:
    fed = [FedUpdate("a", number, 2, None, None, "x", {"samples": 0.0}) for number in (1, 2)]
    (row,) = Comparison({"a": fed}, {}).rows()
    assert (row.updates, row.reward_gain, row.effective_samples, row.loss) == (2, None, None, None)
