"""A start refuses a model that its settings cannot use, and asks nothing that they do not need."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from unstable_stream.errors import ConfigError
from unstable_stream.inference.tiny_player import tiny_player_path
from unstable_stream.runs.config import parse_config
from unstable_stream.services.launch.preflight import check_base_model, check_config


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a model whose layers have names of their own."""
    path = tmp_path_factory.mktemp("gpt2")
    transformers.GPT2Config(n_layer=1).save_pretrained(path)
    return path


def settings(path: Path, **others: Any) -> Any:
    return parse_config({"model": str(path), "train_envs": [{"env_id": "TicTacToe-v0"}], **others})


def test_only_an_adapter_needs_layers_to_adapt(gpt2: Path) -> None:
    with pytest.raises(ConfigError, match=r"lora\.target_modules names q_proj.*c_attn"):
        check_base_model(settings(gpt2), str(gpt2))
    for unneeded in ({"learner": {"parameters": "all"}}, {"lora": {"target_modules": ["c_attn"]}}):
        with pytest.raises(ConfigError, match="no tokenizer files"):  # the next thing that is missing
            check_base_model(settings(gpt2, **unneeded), str(gpt2))
    check_base_model(settings(gpt2, learner={"iterations": 0}), str(gpt2))


def test_a_head_among_the_targets_matters_to_an_adapter_alone(gpt2: Path) -> None:
    lora = {"target_modules": ["lm_head"]}
    with pytest.raises(ConfigError, match="names lm_head"):
        settings(gpt2, lora=lora).check_trainable()
    settings(gpt2, lora=lora, learner={"parameters": "all"}).check_trainable()


def test_an_opponent_that_cannot_play_is_named(tmp_path: Path) -> None:
    transformers.MambaConfig(num_hidden_layers=1).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    other = {"name": "state-space", "kind": "model", "path": str(tmp_path)}
    config = settings(tiny_player_path(), evaluation={"opponents": [other]})
    with pytest.raises(ConfigError, match=r"opponent 'state-space': .*MambaForCausalLM"):
        check_config(config)


def test_a_tokenizer_larger_than_its_model_is_refused_with_both_sizes(tmp_path: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((tiny_player_path() / file).read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 7}')
    with pytest.raises(ConfigError, match="has 40 tokens and the model 7 "):
        check_base_model(settings(tmp_path), str(tmp_path))
