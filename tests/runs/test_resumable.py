"""A run that goes on keeps what its recorded events follow from, and may change the rest."""

from typing import Any

import pytest

from tests.services.workers.test_game_schedule import config
from unstable_stream.errors import ConfigError
from unstable_stream.runs.resume import check_resumable

REWARDS = config().rewards.model_dump(mode="json")
"""Those that the run has: a preset brings others, where they are not named."""


def test_what_nothing_recorded_depends_on_may_change() -> None:
    begun = config(learner={"iterations": 5})
    check_resumable(begun, begun)
    learner = {"iterations": 50, "learning_rate": 1e-5, "mini_batch_size": 8}
    check_resumable(begun, config(learner=learner, collector={"num_workers": 64}, max_restarts=1))


@pytest.mark.parametrize(
    "changes",
    [
        {"model_pool": {"sample_mode": "random", "temperature": 0.5, "mirror_fraction": 0.2}},
        {"model_pool": {"sample_mode": "lagged", "lag_range": (2, 5), "max_active_lora": 6}},
        {"train_envs": [{"env_id": "KuhnPoker-v0-train"}]},
        {"curriculum": {"floor": 0.5}},
        {"algorithm": {"type": "a2c"}, "rewards": REWARDS},
        {"algorithm": {"type": "ppo", "epochs": 2}, "rewards": REWARDS},
    ],
)
def test_who_plays_next_may_change(changes: dict[str, Any]) -> None:
    check_resumable(config(), config(**changes))


def test_a_run_with_an_algorithm_of_ones_own_goes_on() -> None:
    begun = config(algorithm={"type": "examples/extensions/algorithm.py:Vanilla"})
    check_resumable(begun, begun)
    with pytest.raises(ConfigError, match=r"algorithm\.truncated_turns from None to 'train'"):
        check_resumable(begun, config())


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seed": 1}, "seed"),
        ({"model": "other"}, "model"),
        ({"rewards": {"final": [{"type": "WinDrawLossFormatter"}]}}, "rewards.final"),
        ({"rewards": {"sampling": []}}, "rewards.sampling"),
        ({"model_pool": {"fixed": [{"name": "random-legal"}]}}, "model_pool.fixed"),
        ({"model_pool": {"rating_system": "elo"}}, "model_pool.rating_system"),
        ({"model_pool": {"draw_probability": {"Nim": 0.3}}}, "model_pool.draw_probability.Nim"),
        ({"buffer": {"max_staleness": 3}}, "buffer.max_staleness"),
        ({"learner": {"batch_size": 8}}, "learner.batch_size"),
        ({"learner": {"max_train_len": 100}}, "learner.max_train_len"),
        ({"algorithm": {"truncated_turns": "drop"}}, "algorithm.truncated_turns"),
        ({"collector": {"filter_opponent_invalid": True}}, "collector.filter_opponent_invalid"),
        ({"collector": {"max_turns": 10}}, "collector.max_turns"),
        ({"collector": {"invalid_moves_allowed": 2}}, "collector.invalid_moves_allowed"),
        ({"collector": {"branches": 4}}, "collector.branches"),
        ({"collector": {"branch_share": 0.5}}, "collector.branch_share"),
        ({"collector": {"branch_at": "unsure"}}, "collector.branch_at"),
    ],
)
def test_what_recorded_events_follow_from_may_not(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"would change {key} from .* to "):
        check_resumable(config(), config(**changes))


def test_every_key_that_differs_is_named() -> None:
    changed = config(seed=3, buffer={"strategy": "fifo"})
    with pytest.raises(ConfigError, match=r"seed from 0 to 3; buffer.strategy from 'random' to 'fifo'\."):
        check_resumable(config(), changed)
