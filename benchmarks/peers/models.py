"""A model with random weights, a tokenizer and a random adapter, in one directory that all sides read."""

import os
from pathlib import Path

# Read when imported: nothing is asked of a model hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import peft
import torch
import transformers
from tokenizers import Tokenizer, models

from benchmarks.peers.batch import RANK, Shape, text_of
from unstable_stream.algorithms.settings import ALL_PROJECTIONS

_ADAPTER_STD = 0.02
"""Of both factors, so that neither has a gradient of zero, as a new adapter has."""


def write_model(shape: Shape, directory: Path) -> int:
    """Write ``model`` and ``adapter``; return the number of the model's parameters."""
    sizes = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "head_dim": shape.hidden // shape.heads,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": shape.tied,
        "pad_token_id": 0,
        "eos_token_id": 0,
        "bos_token_id": None,
        "dtype": "float32",
    }
    torch.manual_seed(0)
    if shape.kind == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    _round(model)
    parameters: int = sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(directory / "model")
    _tokenizer(shape).save_pretrained(directory / "model")
    lora = peft.LoraConfig(
        r=RANK, lora_alpha=2 * RANK, target_modules=list(ALL_PROJECTIONS), task_type="CAUSAL_LM"
    )
    policy = peft.get_peft_model(model, lora)
    for parameter in policy.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=_ADAPTER_STD)
    _round(policy)
    policy.save_pretrained(directory / "adapter")
    return parameters


def _round(model: torch.nn.Module) -> None:
    """Keep only what is exact in bfloat16, so that a side which loads it that way has the same model."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())


def _tokenizer(shape: Shape) -> transformers.PreTrainedTokenizerFast:
    """Return one with a character for each token: no text has other tokens than the batch."""
    characters = text_of(range(shape.vocabulary))
    vocabulary = {character: token for token, character in enumerate(characters)}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocab=vocabulary, merges=[])),
        eos_token=characters[0],
        pad_token=characters[0],
    )
