"""A run that is destroyed at once is forked before that; the branch that plays better goes on."""

from pathlib import Path
from typing import Any

import pytest

import unstable_stream as us
from tests.api.conftest import ENV
from tests.command_line import run_command
from unstable_stream.api import healing
from unstable_stream.errors import ConfigError

pytestmark = pytest.mark.longer

DESTROYED: dict[str, Any] = {
    "name": "destroyed",
    "model": "tiny-player",
    "train_envs": [ENV],
    "backend": "inline",
    "max_tokens": 1,
    "num_workers": 8,
    "batch_size": 32,
    "mini_batch_size": 32,
    "learning_rate": 0.5,
    "iterations": 8,
    "evaluation_opponents": ["random-legal"],
    "max_eval_games_per_ckpt": 2,
    "on_collapse": "stop",
    "overrides": ["learner.keep_optimizer_states=all"],
}


def test_a_run_that_collapses_is_forked_before_that(tmp_path: Path) -> None:
    """Of twenty fifths of a rate of a half one is harmless: the fork reaches its last update."""
    lines: list[str] = []
    first = us.build(data=tmp_path, **DESTROYED)
    healed = us.heal(first, times=20, live=False, report=lines.append)
    assert first.state == "stopped"
    assert healed.state == "completed"
    assert healed.id != first.id
    assert healed.config.learner.learning_rate <= 0.1
    assert healed.config.model_pool.sample_mode == "lagged"
    assert healed.config.algorithm.kl_coef == 0.02  # type: ignore[union-attr]
    sign = first.collapse().warnings[-1]
    assert lines[0].startswith(f"run {first.id} stopped at update {sign.update}: {sign.text}")
    assert f"goes on after update {sign.fork_at} with learner.learning_rate=0.1" in lines[0]


def test_the_branch_that_plays_worse_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = us.build(data=tmp_path, **DESTROYED)
    won = {first.id: 0.5}
    monkeypatch.setattr(healing, "_won", lambda run, since: won.get(run.id, 0.25))
    lines: list[str] = []
    began, fork, healed = healing.branches(first, 2, live=False, report=lines.append)
    assert began.id == first.id != fork.id
    assert (healed.id, healed.state) == (first.id, "completed")
    assert lines[-1] == f"run {first.id} won 50.0%, its fork 25.0%: the first goes on"


def test_what_a_run_played_before_its_collapse_does_not_count(tmp_path: Path) -> None:
    run = us.build(data=tmp_path, **DESTROYED | {"learning_rate": 1e-6, "iterations": 1}).start(live=False)
    won = run.sql(
        "SELECT sum(wins) / sum(games) FROM win_rates WHERE split = 'eval' AND policy_version = 1"
    ).rows()[0][0]
    assert healing._won(run, 1) == won
    assert healing._won(run, 2) == -float("inf")


def test_a_run_that_would_not_heal_is_refused(tmp_path: Path) -> None:
    lacking: dict[str, Any]
    for lacking in ({"on_collapse": "warn"}, {"evaluation_opponents": []}):
        with pytest.raises(ConfigError, match="cannot heal"):
            us.heal(us.build(data=tmp_path, **DESTROYED | lacking))
    refused = run_command("train", "quickstart.toml", "--heal", "1", "--seeds", "0,1", cwd=tmp_path)
    assert "--heal is for one run" in refused.stderr
