"""What a run's configuration makes of its engine, and the number format: measured, and kept for a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from unstable_stream.algorithms.learners.hardware import bfloat16_speed
from unstable_stream.errors import AdapterError
from unstable_stream.inference.cores import fastest_on_cpu
from unstable_stream.inference.engine import Adapter, GenerationRequest, ProvesAdapters
from unstable_stream.inference.tiny_player import tiny_player_path
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.placement import Share
from unstable_stream.services.workers.checkpoint_home import DirectoryHome
from unstable_stream.services.workers.engine import build_engine
from unstable_stream.services.workers.learner_core import kept

Built = Callable[..., dict[str, Any]]
_EXAMPLE = Path(__file__).parents[3] / "examples" / "extensions" / "engine.py"


@pytest.fixture
def vllm_settings(monkeypatch: pytest.MonkeyPatch) -> Built:
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
    cores: int, changes: dict[str, Any], threads: int, vllm_settings: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray tells an actor that asks for no core to compute with one thread, on any machine."""
    monkeypatch.setattr("unstable_stream.services.workers.engine.available_cores", lambda: cores)
    assert vllm_settings(changes)["num_threads"] == threads


@pytest.mark.parametrize("chosen", ["float32", "bfloat16"])
def test_vllm_computes_in_the_numbers_that_were_measured_faster(
    chosen: str, vllm_settings: Built, monkeypatch: pytest.MonkeyPatch
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


# -- the number format of learner and engine ------------------------------------------------------


never = Mock(side_effect=AssertionError("the choice was made anew"))


def test_a_run_keeps_the_choice_of_its_start(tmp_path: Path) -> None:
    root = DirectoryHome(tmp_path / "checkpoints" / "run")
    assert kept(root, lambda: "bfloat16") == "bfloat16"
    assert kept(root, never) == "bfloat16"
    assert kept(DirectoryHome(tmp_path / "other"), lambda: "float32") == "float32"


def test_a_run_from_before_there_was_a_choice_goes_on_in_float32(tmp_path: Path) -> None:
    (tmp_path / "ckpt-000001").mkdir()
    (tmp_path / "ckpt-000001" / "state.json").write_text("{}")
    assert kept(DirectoryHome(tmp_path), never) == "float32"


def test_a_tiny_or_unknown_model_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstable_stream.algorithms.learners.hardware.bfloat16_speed", never)
    assert fastest_on_cpu("engine 0", str(tiny_player_path()), rows=32, num_threads=1) == "float32"
    assert fastest_on_cpu("engine 0", str(tmp_path), rows=32, num_threads=1) == "float32"


@pytest.mark.parametrize(("speed", "expected"), [(0.3, "float32"), (1.1, "float32"), (4.0, "bfloat16")])
def test_bfloat16_must_be_clearly_faster(
    speed: float, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [60_000_000], "data_offsets": [0, 240_000_000]}})
    weights = len(header).to_bytes(8, "little") + header.encode()
    (tmp_path / "model.safetensors").write_bytes(weights)
    (tmp_path / "config.json").write_bytes((tiny_player_path() / "config.json").read_bytes())
    measured = Mock(return_value=speed)
    monkeypatch.setattr("unstable_stream.algorithms.learners.hardware.bfloat16_speed", measured)
    asked: dict[str, Any] = {"rows": 256, "num_threads": 2, "backward": True}
    assert fastest_on_cpu("learner", str(tmp_path), **asked) == expected
    assert [call.kwargs for call in measured.call_args_list] == [asked]


@pytest.mark.parametrize("backward", [False, True])
def test_the_measurement_leaves_threads_and_random_numbers_as_they_were(backward: bool) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert bfloat16_speed(64, 128, rows=8, num_threads=1, backward=backward) > 0
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
