"""What a run's configuration makes of its engine."""

from pathlib import Path
from typing import Any

import pytest

from unstable_stream.errors import AdapterError
from unstable_stream.inference.engine import Adapter, GenerationRequest, ProvesAdapters
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.placement import Share
from unstable_stream.services.workers.engine import build_engine

_EXAMPLE = Path(__file__).parents[3] / "examples" / "extensions" / "engine.py"


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
    monkeypatch.setattr("unstable_stream.services.workers.engine.available_cores", lambda: cores)
    minimal = {"model": "m", "train_envs": [{"env_id": "TicTacToe-v0-train"}], "engine": {"type": "vllm"}}
    build_engine(parse_config(minimal | changes), "m", Share("engine 0"))
    assert given["num_threads"] == threads


@pytest.mark.parametrize("chosen", ["float32", "bfloat16"])
def test_vllm_computes_in_the_numbers_that_were_measured_faster(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    measured: list[tuple[object, ...]] = []

    def fastest(*asked: object, **settings: object) -> str:
        measured.append((*asked, settings))
        return chosen

    monkeypatch.setattr("unstable_stream.services.workers.engine.fastest_on_cpu", fastest)
    monkeypatch.setattr(
        "unstable_stream.inference.vllm.engine.VllmEngine", lambda path, **settings: made.append(settings)
    )

    def dtype(share: Share, **engine: Any) -> object:
        given = {"model": "a", "train_envs": [{"env_id": "e"}], "engine": {"type": "vllm", **engine}}
        build_engine(parse_config(given), "a model", share)
        return made[-1]["dtype"]

    assert dtype(Share("engine 0"), num_threads=3) == chosen
    assert measured == [("engine 0", "a model", {"rows": 32, "num_threads": 3})]
    assert dtype(Share("engine 0"), dtype="float16") == "float16", "as told"
    assert dtype(Share("engine 0", num_gpus=1.0)) == "auto", "vLLM's own choice on a GPU"
    assert len(measured) == 1


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
