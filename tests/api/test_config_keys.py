"""The keys of a configuration as they are explained, and the schema by which editors check a file."""

import tomllib
from pathlib import Path

import jsonschema
import pytest

from tests.command_line import run_command
from unstable_stream.api.config_keys import config_keys, config_schema, explained, set_in
from unstable_stream.api.starting import examples
from unstable_stream.errors import ConfigError
from unstable_stream.ui.cli.options import complete_key

ROOT = Path(__file__).parents[2]


def test_every_key_has_a_meaning_and_a_type() -> None:
    keys = config_keys()
    assert {"learner.learning_rate", "lora.lora_rank", "evaluation.opponents.template"} <= {
        key.path for key in keys
    }
    assert [key for key in keys if not key.meaning.strip() or not key.kind] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            "learner.learning_rate FILE",
            ["number above 0; default 0.0001", "Step size of AdamW", "FILE: 0.001"],
        ),
        (
            "max_loras",
            ["engine.max_loras: integer above 0; default 8, where type is transformers", "is vllm"],
        ),
        ("train_envs.0.env_id FILE", ["train_envs.env_id: text; required", 'FILE: "SimpleTak-v0-train"']),
        ("sampling FILE", ["sampling.top_p: number above 0, at most 1; default 1.0", "not set in FILE"]),
        ("engine.dtype", ["one of auto, float32, bfloat16, float16; default "]),
    ],
)
def test_a_key_is_explained_with_its_value_in_a_file(arguments: str, says: list[str], tmp_path: Path) -> None:
    (tmp_path / "FILE").write_text(examples()["quickstart"].read_text(encoding="utf-8"))
    done = run_command("config", "explain", *arguments.split(), cwd=tmp_path, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert all(each in done.stdout for each in says), done.stdout


def test_a_key_of_an_entry_is_explained_as_set_names_it(tmp_path: Path) -> None:
    pool = 'fixed = [{kind = "scripted", name = "old", weight = 2.0}, {kind = "scripted"}]'
    envs = "[[train_envs]]\nenv_id = 'A'\n[[train_envs]]\nenv_id = 'B'"
    (tmp_path / "FILE").write_text(f"{envs}\n[model_pool]\n{pool}")

    def told(*keys: str) -> str:
        return "".join(f"{set_in(tmp_path / 'FILE', explained(key)[0].path, key)} " for key in keys)

    assert told("train_envs.env_id", "train_envs.0.env_id", "train_envs.1.env_id") == '"A" "A" "B" '
    assert told("model_pool.fixed.old.weight", "model_pool.fixed.1.weight") == "2.0 None "
    with pytest.raises(ConfigError, match=r"^model_pool\.fixed.new.weight: the list has no entry 'new'"):
        told("model_pool.fixed.new.weight")


def test_the_shell_is_offered_each_key_that_set_takes_once() -> None:
    offered = [key for key, _ in complete_key("")]
    assert {"learner.batch_size=", "engine.max_loras=", "evaluation.every="} <= {*offered}
    assert len(offered) == len({*offered})
    assert complete_key("train_envs") == complete_key("model_pool.fixed") == []


def test_an_unknown_key_is_told_with_those_that_are_close(tmp_path: Path) -> None:
    done = run_command("config", "explain", "learner.batchsize", cwd=tmp_path)
    assert done.returncode == 1
    assert "no key 'learner.batchsize'; did you mean learner.batch_size" in done.stderr


def test_the_schema_takes_every_example_and_refuses_a_mistake() -> None:
    validator = jsonschema.Draft202012Validator(config_schema())
    files = [path for path in sorted((ROOT / "examples").rglob("*.toml")) if path.parent.name != "mappings"]
    assert len(files) > 5
    for file in [*files, *examples().values()]:
        validator.validate(tomllib.loads(file.read_text(encoding="utf-8")))
    valid = {"model": "m", "train_envs": [{"env_id": "TicTacToe-v0-train"}]}
    for short in ({"algorithm": "grpo"}, {"engine": "vllm"}, {"algorithm": {"kl_coef": 0.1}}):
        validator.validate({**valid, **short, "evaluation": {"opponents": ["perfect"]}})
    own = {"algorithm": {"type": "my.py:Mine", "anything": 1}, "rewards": {"step": ["Discount"]}}
    validator.validate({**valid, **own})
    for wrong in (
        {"learner": {"learning_rat": 1e-4}},
        {"learner": {"learning_rate": 0}},
        {"algorithm": {"type": "ppo", "gae": 1}},
        {"engine": {"type": "vllm", "max_lora": 1}},
        {"evaluation": {"opponents": [{"kind": "scripted"}]}},
    ):
        assert not validator.is_valid({**valid, **wrong}), wrong
