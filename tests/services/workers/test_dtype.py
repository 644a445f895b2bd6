"""The number format of learner and engine: measured on a CPU, and kept for a whole run."""

import json
from pathlib import Path

import pytest
import torch

from unstable_stream.algorithms.learners.hardware import bfloat16_speed
from unstable_stream.inference.cores import fastest_on_cpu
from unstable_stream.inference.tiny_player import tiny_player_path
from unstable_stream.services.workers.checkpoint_home import DirectoryHome
from unstable_stream.services.workers.learner_core import kept


def never() -> str:
    raise AssertionError("the choice was made anew")


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
    asked: list[dict[str, object]] = []

    def measured(*sizes: int, **settings: object) -> float:
        asked.append(settings)
        return speed

    monkeypatch.setattr("unstable_stream.algorithms.learners.hardware.bfloat16_speed", measured)
    assert fastest_on_cpu("learner", str(tmp_path), rows=256, num_threads=2, backward=True) == expected
    assert asked == [{"rows": 256, "num_threads": 2, "backward": True}]


@pytest.mark.parametrize("backward", [False, True])
def test_the_measurement_leaves_threads_and_random_numbers_as_they_were(backward: bool) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert bfloat16_speed(64, 128, rows=8, num_threads=1, backward=backward) > 0
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
