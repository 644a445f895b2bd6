"""What each machine of a cluster has of what a run needs, compared with the launcher's."""

import shutil
from pathlib import Path

import msgspec
import pytest

from unstable_stream.inference.base_model import model_fingerprint, resolve_model
from unstable_stream.launch.ray.nodes import Equipment, equipment, lacking
from unstable_stream.runs.config import RunConfig, parse_config

_HERE = Equipment("1.2.3", "3.11", "f00", ("template mine:prompt abc",), vllm=True)


def _config(**keys: object) -> RunConfig:
    return parse_config({"model": "tiny-player", "train_envs": [{"env_id": "TicTacToe-v0-train"}], **keys})


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({}, None),
        ({"version": "1.2.2"}, "unstable_stream 1.2.2, here 1.2.3"),
        ({"python": "3.12"}, "Python 3.12, here 3.11"),
        ({"model": ""}, "no model at /models/one"),
        ({"model": "bad"}, "another model at /models/one"),
        ({"code": ("template mine:prompt abd",)}, "other code than here of mine:prompt"),
        ({"code": (), "code_error": "no module mine"}, "no module mine (copy the code there"),
        ({"vllm": False}, None),
        ({"store_error": "s3://bucket could not be reached"}, "learner.ckpt_root: s3://bucket could not be"),
    ],
)
def test_a_machine_is_told_what_it_lacks(there: dict[str, object], said: str | None) -> None:
    found = lacking(_config(), "/models/one", _HERE, msgspec.structs.replace(_HERE, **there))
    assert len(found) == (said is not None), found
    assert said is None or said in found[0]


def test_vllm_is_asked_for_where_it_is_wanted() -> None:
    config = _config(engine={"type": "vllm"})
    assert lacking(config, "m", _HERE, _HERE) == []
    (found,) = lacking(config, "m", _HERE, msgspec.structs.replace(_HERE, vllm=False))
    assert "vLLM is not installed there" in found


def test_a_machine_looks_at_itself(tmp_path: Path) -> None:
    path = resolve_model("tiny-player")
    here = equipment(_config(), path)
    assert lacking(_config(), path, here, equipment(_config(), path)) == []
    (found,) = lacking(_config(), path, here, equipment(_config(), str(tmp_path / "nowhere")))
    assert f"no model at {path}" in found


def test_a_machine_tries_the_store_of_checkpoints(s3: str) -> None:
    path = resolve_model("tiny-player")
    config = _config(learner={"ckpt_root": s3})
    assert equipment(config, path).store_error == ""
    elsewhere = _config(learner={"ckpt_root": "nowhere://bucket"})
    assert "no store of kind 'nowhere'" in equipment(elsewhere, path).store_error


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
