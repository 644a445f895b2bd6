"""The GPU check, tried on a CPU: a tiny Qwen3 of random weights, in this process and as typed."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check.engines import measure_agreement, measure_transformers
from benchmarks.gpu_check.foretold import model_flops_utilization
from benchmarks.gpu_check.job import Job, Row
from benchmarks.gpu_check.launches import measure_launches
from benchmarks.gpu_check.learning import measure_learner
from benchmarks.gpu_check.shapes import build_model
from benchmarks.gpu_check.whole_run import measure_run
from tests.processes import ROOT, completed
from unstable_stream.inference.model_config import ModelShape

pytestmark = pytest.mark.longer


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    build_model("tiny", path, "cpu")
    return path


Measured = Callable[[Callable[[Job], Iterator[Row]]], list[Row]]


@pytest.fixture
def measured(tiny_qwen3: Path, tmp_path: Path) -> Measured:
    job = Job(
        part="tried",
        shape="tiny",
        model=str(tiny_qwen3),
        device="cpu",
        work=str(tmp_path),
        lengths=(32, 64),
        rounds=1,
        batch_tokens=256,
        micro_batch_tokens=128,
        requests=4,
        max_tokens=8,
    )
    return lambda part: list(part(job))


def test_the_learner_is_measured_at_each_length_with_and_without_recomputing(measured: Measured) -> None:
    rows = measured(measure_learner)
    assert [(row["recompute"], row["length"], row["samples"]) for row in rows] == [
        (recompute, length, 256 // length)
        for recompute in ("none", "activation_checkpointing", "gradient_checkpointing")
        for length in (32, 64)
    ]
    assert all(row["trained_tokens_per_s"] > 0 and row["peak_gib"] > 0 for row in rows)
    assert all(row["foretold_gib"] > 0.5 and row["mfu"] is None for row in rows)  # no GPU, no peak to compare


def test_the_share_of_the_peak_counts_what_an_adapter_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    shape = ModelShape(
        parameters=100 + 7 * 4,
        stored_bytes=0,
        layers=2,
        hidden=4,
        intermediate=8,
        heads=2,
        key_heads=1,
        head_size=3,
        vocabulary=7,
        max_positions=10,
        tied=True,
    )
    # 4 x 100 x 20 in the layers, 4 x 28 x 5 in the head, 3 x 2 x 2 x 10 x 6 x 20 in attention.
    operations = 8_000 + 560 + 14_400
    used = model_flops_utilization(shape, length=10, tokens=20, trained=5, seconds=operations / 989e12)
    assert used == 1.0


def test_an_update_is_timed_with_both_kinds_of_adapter_layers(measured: Measured) -> None:
    rows = measured(measure_launches)
    assert [row["adapters"] for row in rows] == ["PEFT's", "fused"]
    assert all(row["ms"] > 0 and row["kernels"] == 0 for row in rows)  # no GPU


def test_the_engine_is_measured_beside_the_bare_library(measured: Measured) -> None:
    rows = measured(measure_transformers)
    for row, length in zip(rows, (32, 64), strict=True):
        assert (row["length"], row["requests"], row["completion_tokens"]) == (length, 4, 8)
        assert row["share_of_bare"] == pytest.approx(row["tokens_per_s"] / row["bare_tokens_per_s"], abs=0.05)


def test_the_agreement_tells_an_adapter_from_the_base_model(measured: Measured) -> None:
    adapter, control = measured(measure_agreement)
    assert adapter["tokens"] == control["tokens"] == 32
    assert adapter["ratio_mean"] == pytest.approx(1.0, abs=1e-3)
    assert adapter["ratio_max"] == pytest.approx(1.0, abs=1e-2)
    assert control["kl"] > 0.1


def check(*arguments: str) -> "subprocess.CompletedProcess[str]":
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return completed(sys.executable, "-m", "benchmarks.gpu_check", *arguments, cwd=ROOT, env=hidden)


def test_without_a_gpu_it_says_so_and_measures_nothing(tmp_path: Path) -> None:
    done = check("--json", str(tmp_path / "found.json"), "--work", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "skipped: no CUDA GPU" in done.stdout
    (machine,) = json.loads((tmp_path / "found.json").read_text())["results"]
    assert machine["part"] == "machine"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_part_that_fails_takes_no_other_with_it(tiny_qwen3: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = check(
        *("--device", "cpu", "--models", str(tmp_path / "empty"), str(tiny_qwen3), "--parts", "learner"),
        *("--lengths", "32", "--batch-tokens", "64", "--rounds", "1"),
        *("--json", str(tmp_path / "found.json"), "--work", str(tmp_path)),
    )
    assert done.returncode == 1
    results = json.loads((tmp_path / "found.json").read_text())["results"]
    machine, broken, learner = results
    assert "failed" not in machine
    assert "empty" in broken["failed"]
    # The console breaks the line where it is full, which depends on the length of the path.
    assert "".join(broken["failed"].split()) in "".join(done.stdout.split())
    assert [row["length"] for row in learner["rows"]] == [32, 32, 32]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-env")
def test_vllm_is_measured_beside_the_bare_library(tiny_qwen3: Path, tmp_path: Path) -> None:
    done = check(
        *("--device", "cpu", "--models", str(tiny_qwen3), "--parts", "vllm"),
        *("--lengths", "32", "--rounds", "1"),
        *("--json", str(tmp_path / "found.json"), "--work", str(tmp_path)),
    )
    assert done.returncode == 0, done.stdout
    _, vllm = json.loads((tmp_path / "found.json").read_text())["results"]
    measured, adapter, control = vllm["rows"]
    assert measured["length"] == 32
    assert measured["share_of_bare"] > 0
    # Left to itself vLLM computes in bfloat16 on a CPU, and the learner in float32.
    assert adapter["ratio_mean"] == pytest.approx(1.0, abs=0.05)
    assert adapter["kl"] < 0.05
    assert control["kl"] > 0.1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_whole_run_is_measured_and_audited(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu_check.whole_run.find_spec", lambda name: None)  # neither Ray nor vLLM
    inline, on_ray = measured(measure_run)
    assert on_ray == {"backend": "ray", "engine": "transformers", "skipped": "ray is not installed"}
    assert inline["audit"] == "passed"
    assert inline["games"] > 0
    assert inline["trained_tokens_per_s"] > 0
    assert inline["ratio_max"] == pytest.approx(1.0, abs=1e-2)
