"""Qwen3 in its published sizes with random weights, for machines that hold no weights and reach no hub."""

from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gpu_check.job import Row

# layers, hidden, feed-forward, query heads, key/value heads, head, vocabulary, tied embeddings
SHAPES: Final = {
    "tiny": (2, 64, 128, 2, 1, 32, 512, True),
    "0.6B": (28, 1024, 3072, 16, 8, 128, 151_936, True),
    "1.7B": (28, 2048, 6144, 16, 8, 128, 151_936, True),
    "4B": (36, 2560, 9728, 32, 8, 128, 151_936, True),
    "8B": (36, 4096, 12_288, 32, 8, 128, 151_936, False),
}
"""From the ``config.json`` of ``Qwen/Qwen3-…``; ``tiny`` is ours, for a CPU."""

_SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LOGIT_STD: Final = 3.5
"""Of a trained model's order: next tokens are far from equally likely, so a wrong one shows."""


def build_model(shape: str, path: Path, device: str) -> Row:
    """Write the model of ``shape`` and a tokenizer of bytes below ``path``; return its size.

    It has no end token, so completions are as long as asked for. bfloat16 for a GPU, float32 for a CPU.
    """
    layers, hidden, inner, heads, key_heads, head, vocabulary, tied = SHAPES[shape]
    # Narrower, and the layers of a small model would add nothing to the embedding of the last token.
    width = max(0.02, 0.64 / hidden**0.5)
    config = transformers.Qwen3Config(
        initializer_range=width,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=head,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=40_960,
        rope_theta=1_000_000.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    # Drawn on the device: a CPU takes a minute for four billion numbers.
    with torch.device(device):
        model: Any = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if device.startswith("cuda") else torch.float32
        )
    with torch.no_grad():
        # After the last norm, states have length sqrt(hidden).
        model.get_decoder().norm.weight.mul_(_LOGIT_STD / (width * hidden**0.5))
    model.save_pretrained(path)
    _tokenizer().save_pretrained(path)
    return {"parameters": sum(weight.numel() for weight in model.parameters())}


def _tokenizer() -> transformers.PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in _SPECIALS])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
