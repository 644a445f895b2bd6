"""What a model cannot do is said in one line before anything starts, from its small files alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.inference.test_turn_ends import write
from unstable_stream.errors import ConfigError
from unstable_stream.inference.base_model import KNOWN_TYPES, check_model
from unstable_stream.inference.model_config import context_tokens, read_config
from unstable_stream.inference.tokenizer import load_tokenizer
from unstable_stream.inference.transformers.trial import try_model

PROJECTIONS = ("q_proj", "v_proj", "down_proj")


def config(directory: Path, type_: str, **settings: Any) -> str:
    """Write the configuration of a model of this type, and nothing else."""
    made = transformers.AutoConfig.for_model(type_, **settings)
    made.save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize("type_", sorted(KNOWN_TYPES))
def test_the_types_that_are_not_tried_would_pass(tmp_path: Path, type_: str) -> None:
    path = config(tmp_path, type_, **({} if type_ in ("gemma3", "mistral3") else {"num_hidden_layers": 2}))
    if type_ in ("gemma3", "mistral3"):
        small = json.loads((tmp_path / "config.json").read_text())
        small["text_config"] |= {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
        small["vision_config"] |= {"num_hidden_layers": 1}
        (tmp_path / "config.json").write_text(json.dumps(small))
    names = ("qkv_proj",) if type_ == "phi3" else PROJECTIONS
    try_model(path, plays_here=True, trains=True, targets=names)


@pytest.mark.parametrize(
    ("type_", "settings", "message"),
    [
        ("mamba", {"num_hidden_layers": 2}, r"0 of 2 layers attend"),
        ("falcon", {"num_hidden_layers": 2}, r"the transformers engine cannot play its attention"),
        ("bloom", {"n_layer": 2}, r"0 of 2 layers attend"),
        ("gemma2", {"num_hidden_layers": 2}, r"softcap"),
        ("falcon_h1", {"num_hidden_layers": 2}, r"a state from token to token"),
        ("bert", {"num_hidden_layers": 2}, r"attention to later tokens"),
        ("stablelm", {"num_hidden_layers": 2}, r"does not take other attention"),
        ("t5", {"num_layers": 2}, r"type 't5' does not write text token by token"),
        ("bart", {"encoder_layers": 1, "decoder_layers": 1}, r"does not write text token by token"),
    ],
)
def test_what_the_engine_would_get_wrong_is_refused(
    tmp_path: Path, type_: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check_model(config(tmp_path, type_, **settings), plays_here=True)
    assert "\n" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nobody-knows", "vocab_size": 5, "n_ctx": 5}')
    with pytest.raises(ConfigError, match="nobody-knows") as refused:
        check_model(str(tmp_path), plays_here=True)
    assert "\n" not in str(refused.value)


def test_targets_that_a_model_lacks_are_answered_with_those_it_has(tmp_path: Path) -> None:
    path = config(tmp_path, "gpt2", n_layer=2)
    with pytest.raises(ConfigError, match=r"names q_proj, .*set lora\.target.* c_attn, c_fc, c_proj"):
        check_model(path, plays_here=True, trains=True, targets=PROJECTIONS)
    check_model(path, plays_here=True, trains=True, targets=("c_attn", "mlp.c_proj"))
    check_model(path, plays_here=True, trains=True)  # all parameters


def test_targets_within_an_encoder_of_images_are_none(tmp_path: Path) -> None:
    path = config(tmp_path, "gemma3")
    with pytest.raises(ConfigError, match=r"names out_proj, fc1, which"):
        try_model(path, plays_here=False, trains=True, targets=("q_proj", "out_proj", "fc1"))


def test_quantised_weights_may_play_and_are_not_trained(tmp_path: Path) -> None:
    path = config(tmp_path, "llama", quantization_config={"quant_method": "awq", "bits": 4})
    check_model(path, plays_here=True)
    with pytest.raises(ConfigError, match=r"quantised weights \(awq\), which are not trained"):
        check_model(path, plays_here=True, trains=True)


@pytest.mark.parametrize(
    ("content", "tokenizer", "expected"),
    [
        ({"n_positions": 256}, {}, 256),
        ({"n_ctx": 300}, {"model_max_length": 100}, 300),
        ({"max_seq_len": 64}, {}, 64),
        ({"max_sequence_length": 65}, {}, 65),
        ({"seq_length": 66}, {}, 66),
        ({"max_position_embeddings": 4096, "n_ctx": 12}, {}, 4096),
        ({"max_position_embeddings": -1, "n_ctx": 12}, {}, 12),
        ({"text_config": {"max_position_embeddings": 128}, "max_position_embeddings": 9}, {}, 128),
        ({"llm_config": {}, "n_positions": 9}, {}, 9),
        ({"max_position_embeddings": 32768, "rope_scaling": {"factor": 4.0, "type": "yarn"}}, {}, 32768),
        ({}, {"model_max_length": 512}, 512),
        ({}, {"model_max_length": 10**30}, None),
        ({"n_positions": None}, {}, None),
    ],
)
def test_the_context_is_read_by_whatever_name(
    content: dict[str, Any], tokenizer: dict[str, Any], expected: int | None
) -> None:
    assert context_tokens(content, tokenizer) == expected


def test_what_a_file_leaves_out_is_the_default_of_its_type(tmp_path: Path) -> None:
    """As Gemma 3 of 4B has it."""
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": {"hidden_size": 8}})
    )
    assert context_tokens(read_config(tmp_path)) == transformers.Gemma3TextConfig().max_position_embeddings


def test_a_tokenizer_larger_than_its_model_is_refused(tmp_path: Path) -> None:
    """Control tokens may be more than the model has, as with Gemma 3 of 1B: no text is encoded to them."""
    write(tmp_path, config={"vocab_size": 256})
    load_tokenizer(tmp_path).check_vocabulary()
    write(tmp_path, config={"vocab_size": 255})
    with pytest.raises(ConfigError, match=r"has 256 tokens and the model 255 \(vocab_size in config\.json\)"):
        load_tokenizer(tmp_path).check_vocabulary()
