"""What a run's configuration makes of its engine."""

from typing import Any

import pytest

from unstable_stream.runs.config import parse_config
from unstable_stream.runs.placement import Share
from unstable_stream.workers.engine import build_engine


@pytest.mark.parametrize(
    ("cores", "changes", "threads"),
    [
        (2, {}, 1),
        (1, {}, 1),
        (16, {}, 15),
        (16, {"learner": {"num_threads": 4}, "collector": {"num_actors": 3}}, 4),
        (4, {"collector": {"num_actors": 8}}, 1),
        (16, {"engine": {"type": "vllm", "num_threads": 2}}, 2),
    ],
)
def test_vllm_computes_on_the_cores_that_the_learner_leaves(
    cores: int, changes: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray tells an actor that asks for no core to compute with one thread, on any machine."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        "unstable_stream.inference.vllm.engine.VllmEngine", lambda _, **kwargs: given.update(kwargs)
    )
    monkeypatch.setattr("unstable_stream.workers.engine.available_cores", lambda: cores)
    minimal = {"model": "m", "train_envs": [{"env_id": "TicTacToe-v0-train"}], "engine": {"type": "vllm"}}
    build_engine(parse_config(minimal | changes), "m", Share("engine 0"))
    assert given["num_threads"] == threads
