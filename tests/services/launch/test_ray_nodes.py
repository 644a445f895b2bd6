"""What each machine of a cluster has of what a run needs, compared with the launcher's."""

import os
import re
import shutil
import socket
from pathlib import Path

import huggingface_hub
import msgspec
import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.inference.base_model import model_fingerprint, model_on_this_machine, resolve_model
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.services.launch.ray import nodes
from unstable_stream.services.launch.ray.nodes import Equipment, equipment, lacking, require, software

_HERE = Equipment("1.2.3", "3.11", "f00", ("template mine:prompt abc",), vllm=True)
_MODEL = "someone/player"


def _config(**keys: object) -> RunConfig:
    return parse_config({"model": "tiny-player", "train_envs": [{"env_id": "TicTacToe-v0-train"}], **keys})


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({}, None),
        ({"version": "1.2.2"}, "unstable_stream 1.2.2, here 1.2.3"),
        ({"python": "3.12"}, "Python 3.12, here 3.11"),
        ({"model": ""}, "no model at /models/one"),
        ({"model": None, "errors": ("no network",)}, "no network"),
        ({"model": "bad"}, "another model at /models/one"),
        ({"code": ("template mine:prompt abd",)}, "other code than here of mine:prompt"),
        ({"code": None, "errors": ("no module mine",)}, "no module mine"),
        ({"vllm": False}, "vLLM is not installed there"),
    ],
)
def test_a_machine_is_told_what_it_lacks(there: dict[str, object], said: str | None) -> None:
    config, other = _config(engine={"type": "vllm"}), msgspec.structs.replace(_HERE, **there)
    found = lacking(config, "/models/one", _HERE, other)
    assert len(found) == (said is not None), found
    assert said is None or said in found[0]
    assert "vllm" not in there or lacking(_config(), "/models/one", _HERE, other) == [], "no engine wants it"


def test_a_machine_looks_at_itself(tmp_path: Path) -> None:
    path = resolve_model("tiny-player")
    here = equipment(_config(), path)
    assert lacking(_config(), path, here, equipment(_config(), path)) == []
    (found,) = lacking(_config(), path, here, equipment(_config(), str(tmp_path / "nowhere")))
    assert f"no model at {path}" in found


def test_a_machine_needs_the_models_and_adapters_that_opponents_and_learner_begin_with(
    tmp_path: Path,
) -> None:
    model = Path(shutil.copytree(resolve_model("tiny-player"), tmp_path / "model"))
    adapters = {name: tmp_path / name for name in ("adapter", "begun")}
    for path in adapters.values():
        path.mkdir()
        (path / "adapter_model.safetensors").write_bytes(b"weights")
    config = _config(
        learner={"initial_lora_path": str(adapters["begun"])},
        evaluation={
            "opponents": [
                {"name": "other", "kind": "model", "path": str(model)},
                {"name": "old", "kind": "adapter", "path": str(adapters["adapter"])},
                {"name": "stored", "kind": "adapter", "path": "s3://bucket/adapter"},
                {"name": "small", "kind": "model", "path": "tiny-player"},
                {"name": "hub", "kind": "model", "path": _MODEL},
            ]
        },
        model_revisions={_MODEL: "c0ffee"},
    )
    base = resolve_model("tiny-player")
    here = software(config, base)
    assert lacking(config, base, here, software(config, base)) == []
    (adapters["adapter"] / "notes.json").write_text("{}")
    assert lacking(config, base, here, software(config, base)) == [], "only what is loaded counts"
    (adapters["adapter"] / "adapter_model.safetensors").write_bytes(b"others!")
    shutil.rmtree(model)
    shutil.rmtree(adapters["begun"])
    assert lacking(config, base, here, software(config, base)) == [
        f"learner.initial_lora_path: nothing at {adapters['begun']}: copy it there, or name a directory that "
        "all machines have",
        f"opponent 'other': nothing at {model}: copy it there, or name a directory that all machines have",
        f"opponent 'old': other files at {adapters['adapter']} than here: copy these there",
    ]


def test_a_machine_that_joins_later_has_the_same_software_or_is_refused(tmp_path: Path) -> None:
    path = resolve_model("tiny-player")
    here = software(_config(), path)
    require(_config(), path, here)
    other = msgspec.structs.replace(here, version="0.0.1", model="bad")
    with pytest.raises(ConfigError) as refused:
        require(_config(), path, other)
    assert f"{socket.gethostname()} lacks what the run needs: unstable_stream " in str(refused.value)
    assert f"here 0.0.1: install the same version; another model at {path} than here" in str(refused.value)


def test_a_machine_fetches_a_model_of_hugging_face_in_the_version_of_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []
    own = tmp_path / "own" / "snapshots" / "c0ffee"

    def fetch(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        if not own.is_dir():
            shutil.copytree(resolve_model("tiny-player"), own)
        return str(own)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    there = str(tmp_path / "launcher" / "snapshots" / "c0ffee")
    config = _config(model=_MODEL)
    assert software(config, there).model == model_fingerprint(Path(resolve_model("tiny-player")))
    assert model_on_this_machine(_MODEL, there) == str(own)
    assert asked == [(_MODEL, "c0ffee")] * 2
    # Nobody but its owner can copy a directory of the launcher's own.
    assert software(_config(model="models/mine"), str(tmp_path / "models" / "mine")).model == ""
    assert len(asked) == 2


def test_a_machine_without_network_says_that_it_could_not_fetch_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **keys: object) -> str:
        raise OSError("no route to the host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    here = software(_config(), resolve_model("tiny-player"))
    there = str(tmp_path / "snapshots" / "c0ffee")
    (found,) = lacking(_config(), there, here, software(_config(model=_MODEL), there))
    assert "no route to the host" in found


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print(2, '12.8')", ""),
        ("print(1, '12.8')", "Ray counts 2 GPUs, and PyTorch can use 1: look at nvidia-smi there"),
        ("print(0, None)", "Ray counts 2 GPUs, and PyTorch can use 0: its PyTorch is built without CUDA"),
        ("raise OSError('libcudart is missing')", "PyTorch cannot be loaded: OSError: libcudart is missing"),
        ("import time; time.sleep(60)", "CUDA did not answer within 1 s"),
        # Ray hides the GPUs from a task that asks for none.
        ("import os; print(0 if 'CUDA_VISIBLE_DEVICES' in os.environ else 2, '12.8')", ""),
    ],
)
def test_gpus_that_ray_counts_are_tried(
    program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_ASK_CUDA", program)
    monkeypatch.setattr(nodes, "_CUDA_S", 1.0 if "sleep" in program else 120.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = resolve_model("tiny-player")
    found = equipment(_config(), path, gpus=2).errors
    assert len(found) == bool(said)
    assert "".join(found).startswith(said)
    assert equipment(_config(), path, gpus=0).errors == (), "there are none to try"
    monkeypatch.setenv("UNSTABLE_STREAM_PRETEND_GPUS", "1")
    assert equipment(_config(), path, gpus=2).errors == ()


def test_a_machine_tries_the_store_of_checkpoints(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resolve_model("tiny-player")
    config = _config(learner={"ckpt_root": s3})
    assert equipment(config, path).errors == ()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{os.environ['AWS_ENDPOINT_URL']}/")  # another client
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    (said,) = equipment(config, path).errors
    assert re.match("learner.ckpt_root: .*permission denied", said)


def test_a_fingerprint_tells_trained_weights_and_other_tokenizers_apart(tmp_path: Path) -> None:
    path = Path(resolve_model("tiny-player"))
    same, weights, words = (
        Path(shutil.copytree(path, tmp_path / name)) for name in ("same", "weights", "words")
    )
    assert model_fingerprint(same) == model_fingerprint(path)
    file = next(weights.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    (words / "tokenizer_config.json").write_text("{}")
    assert len({model_fingerprint(each) for each in (path, weights, words)}) == 3
