"""Checkpoints: resume continues the same curve, damage is found, crashes leave nothing half done."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.algorithms.learners.conftest import Learner, MakeLearner
from tests.algorithms.learners.samples import make_samples
from tests.processes import python
from tests.tiers import chosen
from unstable_stream.algorithms import A2C, Reinforce
from unstable_stream.algorithms.learners.checkpoint import (
    CheckpointInfo,
    attempts,
    copy_loadable,
    load_checkpoint,
    prune_optimizer_states,
    remove_attempts,
)
from unstable_stream.algorithms.learners.lora import LoraSettings
from unstable_stream.algorithms.learners.settings import LearnerSettings, LrSchedule
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.errors import CheckpointError, LearnerError

pytestmark = pytest.mark.longer

SETTINGS: dict[str, Any] = {
    "batch_size": 64,
    "mini_batch_size": 4,
    "learning_rate": 1e-2,
    "max_generation_len": 8,
    "lora_cfg": LoraSettings(
        lora_rank=4, lora_alpha=8, lora_dropout=0.1, use_rslora=True, loraplus_lr_ratio=2.0
    ),
    "lr_schedule": LrSchedule(type="linear", final_fraction=0.1, total=6),
    "optimizer_steps_per_update": 2,
    "weight_decay": 0.01,
    "seed": 11,
}

ALGORITHM: dict[str, Any] = {
    "entropy_coef": 0.01,
    "target_entropy": 3.66,
    "kl_coef": 0.01,
    "clip_high": 0.5,
    "trust_region": "update",
    "loss_average": "token",
    "clip_cov_ratio": 0.1,
    "clip_cov_lb": 0.1,
    "kl_cov_ratio": 0.1,
}


def train(learner: Learner, first: int, last: int) -> None:
    for number in range(first, last + 1):
        learner.update(make_samples(10, seed=number), number)


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.tensor([[3, 1, 4, 1, 5]])).logits
    return found


def plain_model(path: Path | str) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def curve_learner(model: str, parameters: str, root: Path | str) -> Learner:
    # It is renewed before and after the middle.
    reference = {"reference": "past" if parameters == "all" else "average", "reference_every": 2}
    algorithm = Reinforce(**(ALGORITHM | reference))
    settings = LearnerSettings(**SETTINGS | {"parameters": parameters})
    return StandardLearner(model, settings, algorithm=algorithm, ckpt_root=root)


def continue_from(model: str, middles: dict[str, str], root: str) -> None:
    """Resume each at update 3, train to 6, save."""
    for parameters, checkpoint in middles.items():
        learner = curve_learner(model, parameters, Path(root, parameters))
        learner.load(checkpoint)
        train(learner, 4, 6)
        learner.save()


@chosen("anew", [False], [True])
def test_resume_continues_the_same_curve_bit_for_bit_also_in_a_new_process(
    tiny_model: Path, tmp_path: Path, anew: bool
) -> None:
    middles, ends = dict[str, str](), dict[str, CheckpointInfo]()
    for parameters in ("lora", "all"):
        straight = curve_learner(str(tiny_model), parameters, tmp_path / "straight" / parameters)
        train(straight, 1, 3)
        middles[parameters] = straight.save(positions={"steps[0]": 7}).path
        assert straight.algorithm.state_dict()["entropy_coef"] > 0.01  # the state that must not be forgotten
        train(straight, 4, 6)
        ends[parameters] = straight.save()
    arguments = (str(tiny_model), middles, str(tmp_path / "resumed"))
    if anew:
        code = f"from {__name__} import continue_from; continue_from(*{arguments!r})"
        assert python(code, OMP_NUM_THREADS="1").returncode == 0
    else:
        continue_from(*arguments)
    for parameters, expected in ends.items():
        (directory,) = attempts(tmp_path / "resumed" / parameters)
        resumed = load_checkpoint(directory, expected.sha256)  # the same bytes
        assert resumed.state.samples_seen == 60
        reference = load_checkpoint(expected.path)
        assert resumed.optimizer is not None
        assert reference.optimizer is not None
        for index, state in reference.optimizer["state"].items():
            for name, tensor in state.items():
                assert torch.equal(tensor, resumed.optimizer["state"][index][name])
        kept = [optimizer["reference"] for optimizer in (reference.optimizer, resumed.optimizer)]
        assert kept[0]["age"] == kept[1]["age"] == (0 if parameters == "all" else 6)
        assert all(map(torch.equal, kept[0]["weights"], kept[1]["weights"]))


def test_a_checkpoint_of_all_parameters_is_a_model_of_its_own(
    make_learner: MakeLearner, tiny_model: Path
) -> None:
    learner = make_learner(parameters="all", gradient_checkpointing=True)
    train(learner, 1, 2)
    info = learner.save(positions={"steps[0]": 12, "steps[1]": 9})
    weights = Path(info.path, "model.safetensors")
    assert info.size_bytes == weights.stat().st_size
    expected = logits_of(learner.policy.model)
    torch.testing.assert_close(logits_of(plain_model(info.path)), expected)
    assert (expected - logits_of(plain_model(tiny_model))).abs().max() > 0.01
    words = AutoTokenizer.from_pretrained(tiny_model)
    assert AutoTokenizer.from_pretrained(info.path).get_vocab() == words.get_vocab()
    state = make_learner(parameters="all").load(info.path, info.sha256)
    assert (state.update, state.samples_seen, state.parameters, state.lora) == (2, 20, "all", {})
    assert (state.positions, state.base_model) == ({"steps[0]": 12, "steps[1]": 9}, str(tiny_model))
    with pytest.raises(LearnerError, match="was made with parameters all; this learner has lora"):
        make_learner().load(info.path)


def test_adapter_of_another_shape_is_refused(make_learner: MakeLearner) -> None:
    learner = make_learner()
    info = learner.save()
    with pytest.raises(LearnerError, match="rank and alpha"):
        make_learner(lora_cfg={"lora_rank": 8, "lora_alpha": 8}, initial_lora_path=info.path)
    fewer = {"lora_rank": 4, "lora_alpha": 8, "target_modules": ("q_proj",)}
    with pytest.raises(LearnerError, match=r"differ in name or shape.*target_modules"):
        make_learner(lora_cfg=fewer, initial_lora_path=info.path)
    with pytest.raises(LearnerError, match="lora_cfg"):
        make_learner(lora_cfg=fewer).load(info.path)
    with pytest.raises(LearnerError, match="seed 11; this learner has 12"):
        make_learner(seed=12).load(info.path)


@pytest.mark.parametrize(
    "name", ["adapter_model.safetensors", "optimizer.pt", "adapter_config.json", "networks.safetensors"]
)
def test_damage_is_found_and_named(make_learner: MakeLearner, name: str) -> None:
    info = make_learner(algorithm=A2C()).save()
    path = Path(info.path, name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} is damaged.*earlier checkpoint"):
        load_checkpoint(info.path)


def test_missing_pieces_and_mismatches_are_named(make_learner: MakeLearner, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks .*state\.json.*earlier checkpoint"):
        load_checkpoint(tmp_path / "nothing")
    info = make_learner().save()
    with pytest.raises(CheckpointError, match="the log recorded 00ff"):
        load_checkpoint(info.path, "00ff")
    Path(info.path, "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks .*adapter_model\.safetensors"):
        load_checkpoint(info.path)
    state = Path(info.path, "state.json")
    summary = json.loads(state.read_text())
    state.write_text(json.dumps(summary | {"format": 99}))
    with pytest.raises(CheckpointError, match="format 99; this package reads up to 1"):
        load_checkpoint(info.path)
    state.write_text("{")
    with pytest.raises(CheckpointError, match=r"unreadable state\.json"):
        load_checkpoint(info.path)


@pytest.mark.parametrize("parameters", ["lora", "all"])
def test_a_copy_to_load_has_no_optimizer_state_and_only_what_was_recorded(
    make_learner: MakeLearner, tmp_path: Path, parameters: str
) -> None:
    info = make_learner(parameters=parameters).save()
    target = tmp_path / "copy"
    target.mkdir()
    copied = copy_loadable(info.path, target, info.sha256)
    assert (copied.sha256, copied.size_bytes, copied.path) == (info.sha256, info.size_bytes, str(target))
    names = {path.name for path in target.iterdir()}
    if parameters == "lora":
        assert names == {"adapter_config.json", "adapter_model.safetensors"}
    else:
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
        assert not names & {"optimizer.pt", "state.json"}
    with pytest.raises(CheckpointError, match=r"safetensors is damaged.*expected 00ff; name another"):
        copy_loadable(info.path, target, "00ff")
    state = Path(info.path, "state.json")
    summary = json.loads(state.read_text())
    summary["sha256"] |= {"../elsewhere.json": "00"}
    state.write_text(json.dumps(summary))
    with pytest.raises(CheckpointError, match=r"'\.\./elsewhere\.json' is no name of a file in it"):
        copy_loadable(info.path, target, info.sha256)


def test_light_and_pruned_checkpoints_keep_their_adapters(make_learner: MakeLearner, tmp_path: Path) -> None:
    learner = make_learner()
    paths = []
    for number in (1, 2, 3):
        learner.update(make_samples(3), number)
        paths.append(learner.save().path)
    published = [Path(path) for path in paths]
    learner.save()  # an attempt that nobody published, last by name or not, is not the newest
    pruned = prune_optimizer_states(published, keep_last=1)
    assert [str(path.parent) for path in pruned] == paths[:2]
    assert prune_optimizer_states(published, keep_last=1) == []
    assert load_checkpoint(paths[0]).optimizer is None
    with pytest.raises(CheckpointError, match="no optimizer state"):
        make_learner().load(paths[0])
    assert make_learner().load(paths[2]).update == 3


@pytest.mark.parametrize("crash_at", range(1, 7))
def test_a_crash_while_saving_leaves_all_or_nothing(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    """Stop at each durable point: four files, the directory, the parent."""
    learner = make_learner()
    first = learner.save()
    learner.update(make_samples(3), 1)
    points = 0

    def crash(*_: object) -> None:
        nonlocal points
        points += 1
        if points == crash_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        learner.save()
    monkeypatch.undo()
    found = attempts(Path(first.path).parent)
    assert len(found) == 2
    (attempt,) = [path for path in found if str(path) != first.path]
    assert attempt.name.startswith("ckpt-") == (crash_at == 6)  # after the rename it is complete
    if crash_at == 6:
        load_checkpoint(attempt)
    load_checkpoint(first.path, first.sha256)
    again = learner.save()
    load_checkpoint(again.path, again.sha256)
    assert remove_attempts([attempt]) == [attempt]
    assert attempts(attempt.parent) == sorted([Path(first.path), Path(again.path)])


def test_an_attempt_that_is_being_written_is_not_removed(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a learner that another one has replaced: it must find out from the log, not from the disk."""
    learner = make_learner()
    rename = Path.rename
    tried: list[list[Path]] = []

    def clean_first(path: Path, target: Path) -> Path:
        tried.append(remove_attempts(attempts(path.parent)))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", clean_first)
    saved = learner.save()
    assert tried == [[]]
    load_checkpoint(saved.path, saved.sha256)


def test_only_checkpoints_are_attempts(tmp_path: Path) -> None:
    """The names that earlier versions used are known too."""
    names = ["ckpt-000001", "ckpt-000002-0123abcd", ".tmp-ckpt-000003-0123abcd", ".tmp-replaced-ckpt-000001"]
    for name in [*names, "mine", "ckpt-best", ".tmp-mine"]:
        (tmp_path / name).mkdir()
    for name in ("dtype", ".tmp-dtype"):
        (tmp_path / name).write_text("float32")
    assert [path.name for path in attempts(tmp_path)] == sorted(names)
    assert attempts(tmp_path / "nothing") == []


def test_an_unwritable_place_is_explained(make_learner: MakeLearner, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="could not be written"):
        make_learner(ckpt_root=tmp_path / "file").save()
