"""A small run of the tiny player, which many tests ask, evaluate, take part in a tournament, and push."""

from pathlib import Path
from typing import Any

import pytest

import unstable_stream as us

ENV = {"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}


def train(data: Path, **settings: Any) -> us.Run:
    """Train the tiny player a little, so much that its answers change."""
    small: dict[str, Any] = {
        "model": "tiny-player",
        "train_envs": [ENV],
        "backend": "inline",
        "max_tokens": 2,
        "num_workers": 8,
        "batch_size": 16,
        "mini_batch_size": 16,
        "iterations": 2,
        "learning_rate": 0.05,
        "evaluation_opponents": ["random-legal", "first-legal"],
        "max_eval_games_per_ckpt": 4,
    }
    return us.build(data=data, **(small | settings)).start(live=False)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> us.Run:
    """A run of two updates against one of its two evaluation opponents; its last optimizer state is gone."""
    data = tmp_path_factory.mktemp("trained")
    run = train(data, name="trained", sample_mode="fixed", opponents=["random-legal"])
    (Path(run.checkpoints().dicts()[-1]["path"]) / "optimizer.pt").unlink()
    return run
