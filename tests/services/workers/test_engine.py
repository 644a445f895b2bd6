"""What a run's configuration makes of its engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from unstable_stream.errors import AdapterError
from unstable_stream.inference.engine import Adapter, GenerationRequest, ProvesAdapters
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.placement import Share
from unstable_stream.services.workers.engine import build_engine

_EXAMPLE = Path(__file__).parents[3] / "examples" / "extensions" / "engine.py"


@pytest.fixture
def vllm_settings(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return what vLLM's engine is made with, for a configuration and a share of the GPUs."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "unstable_stream.inference.vllm.engine.VllmEngine", lambda _, **settings: made.append(settings)
    )

    def build(sections: dict[str, Any], share: Share = Share("engine 0")) -> dict[str, Any]:  # noqa: B008
        minimal = {"model": "m", "train_envs": [{"env_id": "TicTacToe-v0-train"}], "engine": {"type": "vllm"}}
        build_engine(parse_config(minimal | sections), "a model", share)
        return made[-1]

    return build


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
    cores: int,
    changes: dict[str, Any],
    threads: int,
    vllm_settings: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray tells an actor that asks for no core to compute with one thread, on any machine."""
    monkeypatch.setattr("unstable_stream.services.workers.engine.available_cores", lambda: cores)
    assert vllm_settings(changes)["num_threads"] == threads


@pytest.mark.parametrize("chosen", ["float32", "bfloat16"])
def test_vllm_computes_in_the_numbers_that_were_measured_faster(
    chosen: str, vllm_settings: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fastest = Mock(return_value=chosen)
    monkeypatch.setattr("unstable_stream.services.workers.engine.fastest_on_cpu", fastest)
    engine = {"type": "vllm", "num_threads": 3}
    assert vllm_settings({"engine": engine})["dtype"] == chosen
    fastest.assert_called_once_with("engine 0", "a model", rows=32, num_threads=3)
    assert vllm_settings({"engine": engine | {"dtype": "float16"}})["dtype"] == "float16", "as told"
    on_gpu = vllm_settings({"engine": engine}, Share("engine 0", num_gpus=1.0))
    assert on_gpu["dtype"] == "auto", "vLLM's own choice on a GPU"
    fastest.assert_called_once()


async def test_an_engine_of_ones_own_plays_adapters_unproven_but_not_changed_ones(tmp_path: Path) -> None:
    (tmp_path / WEIGHTS_FILE).write_bytes(b"weights")
    settings = {"type": str(_EXAMPLE) + ":Constant"}
    minimal = {"model": "m", "train_envs": [{"env_id": "TicTacToe-v0-train"}], "engine": settings}
    engine = build_engine(parse_config(minimal), "m", Share("engine 0"))
    assert isinstance(engine, ProvesAdapters)
    for _ in range(2):
        await engine.generate(GenerationRequest([5], adapter=Adapter("ckpt-000001", str(tmp_path))))
    with pytest.raises(AdapterError, match=r"'ckpt-000002'.*were changed"):
        await engine.generate(
            GenerationRequest([5], adapter=Adapter("ckpt-000002", str(tmp_path), sha256="0" * 64))
        )
    found = [(result.model_uid, result.result) for result in engine.take_adapter_results()]
    assert found == [("ckpt-000001", "unproven"), ("ckpt-000002", "failed")]
    assert engine.take_adapter_results() == []
    await engine.close()
