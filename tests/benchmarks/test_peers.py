"""What the comparison with other learners needs no peer's package for: batch, tokenizer, gradients, table."""

import io
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from benchmarks.peers.__main__ import comparisons_of
from benchmarks.peers.agreement import agreement
from benchmarks.peers.batch import SHAPES, Batch, Shape, make_batch, text_of
from benchmarks.peers.environment import REQUIREMENTS, pins
from benchmarks.peers.measuring import MARK, Clock, Peak
from benchmarks.peers.models import write_model
from benchmarks.peers.ours import samples_of
from benchmarks.peers.table import PAGE, page, table

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SHAPES)
def test_both_sides_get_the_same_batch(name: str, tmp_path: Path) -> None:
    made = make_batch(SHAPES[name])
    made.save(tmp_path / "batch.npz")
    batch = Batch.load(tmp_path / "batch.npz")
    shape = SHAPES[name]
    assert len(batch) == shape.samples
    # Every try cuts the batch without a rest.
    assert all(shape.samples % rows == 0 for rows in (2, *shape.rows))
    assert 1 in shape.rows or not shape.mixed_lengths
    samples = samples_of(batch)
    for index, sample in enumerate(samples):
        prompt, completion = made.sample(index)
        np.testing.assert_array_equal(sample.prompt_token_ids, prompt)
        np.testing.assert_array_equal(sample.completion_token_ids, completion)
        assert len(prompt) == made.prompt_lengths[index]
        assert min(prompt.min(), completion.min()) > 0, "token 0 pads"
    assert sum(len(sample.completion_token_ids) for sample in samples) == made.trained_tokens
    # GRPO makes advantages of rewards by subtracting the mean of a group, here of two.
    np.testing.assert_array_equal(batch.advantages[::2], -batch.advantages[1::2])
    assert [sample.advantage for sample in samples] == batch.advantages.tolist()


def test_a_text_has_the_tokens_of_the_batch(tmp_path: Path) -> None:
    shape = Shape("llama", 1, 16, 16, 2, 1, 500, True, 4, (1,), True)
    assert write_model(shape, tmp_path) > 500 * 16
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    batch = make_batch(shape)
    prompt, completion = batch.sample(3)
    ids = tokenizer(text_of(prompt) + text_of(completion))["input_ids"]
    assert ids == [*prompt.tolist(), *completion.tolist()]
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 0
    assert (tmp_path / "adapter" / "adapter_config.json").exists()


def test_gradients_agree_by_direction_and_length() -> None:
    ours = {"a": np.array([3.0, 0.0], np.float32), "b": np.array([4.0], np.float32)}
    same = agreement(ours, ours)
    assert (same.cosine, same.difference) == (1.0, 0.0)
    twice = agreement(ours, {name: 2 * gradient for name, gradient in ours.items()})
    assert (twice.cosine, twice.difference) == (1.0, 1.0)
    with pytest.raises(ValueError, match=r"one side only: \['b'\]"):
        agreement(ours, {"a": ours["a"]})


def test_only_the_update_is_on_the_clock(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
    clock = Clock(Peak(), "numpy")
    clock.stop()  # it does not run: nothing is told
    began = time.perf_counter()
    clock.start()
    with clock.paused():
        time.sleep(0.2)
    clock.stop()
    whole_s = time.perf_counter() - began
    ready, told = capsys.readouterr().out.splitlines()
    assert ready == f"{MARK} ready"
    found = json.loads(told.removeprefix(MARK))
    assert 0 <= found["seconds"] <= whole_s - 0.2
    assert found["process_mb"] >= found["peak_mb"] >= 0
    assert found["versions"] == {"numpy": np.__version__}
    with pytest.raises(SystemExit, match="nobody measures"):
        clock.start()


def _content(peer: str, shape: str, parameters: int) -> dict[str, Any]:
    name = f"{peer}, {shape}, float32"
    ours, theirs = (
        [
            {"seconds": 2 * took, "cpu_seconds": took, "peak_mb": 100 * took, "process_mb": 1000.0}
            for took in updates
        ]
        for updates in ((1.0, 1.0, 1.0), (2.0, 3.0, 4.0))
    )
    results = [asdict(one) | {"ratio": one.ratio} for one in comparisons_of(name, 60, ours=ours, peer=theirs)]
    near, far = ({"cosine": 1.0, "difference": difference} for difference in (1e-6, 0.5))
    case = {"parameters": parameters, "rows": 4, "agreement": near, "agreement_at_measured_rows": far}
    return {"machine": {peer: "1.2"}, "results": results, "cases": {name: case}}


def test_the_table_has_a_row_for_each_case_by_size() -> None:
    made = table([_content("trl", "large", 200), _content("trl", "small", 100)])
    head, line, *rows = made.splitlines()
    assert [row.split(" | ")[1] for row in rows] == ["small", "large"]
    speed = "3.00 (2.00 to 4.00)"
    assert rows[0] == f"| trl 1.2 | small | {speed} | {speed} | 4.00 | 1.00 | 4 | 1e-06, 5e-01 |"
    assert {text.count("|") for text in (head, line, *rows)} == {9}


def test_the_page_has_the_kept_numbers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run: python -m benchmarks.peers.table"
    kept = list((ROOT / "docs" / "data" / "peers").glob("*.json"))
    assert kept
    for path in kept:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = {row["name"].partition(": ")[0] for row in content["results"]}
        assert found == content["cases"].keys()


def test_the_peers_get_what_our_learner_computes_with() -> None:
    peers, ours = pins(REQUIREMENTS), pins(ROOT / "constraints.txt")
    for package in ("torch", "transformers", "peft", "numpy"):
        assert peers[package] == ours[package]
    assert {"trl", "unstable-rl"} <= peers.keys()
