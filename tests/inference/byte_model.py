"""A small random Llama that reads and writes any text, byte by byte, as an ordinary model directory."""

import json
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(*special: str) -> Tokenizer:
    """A tokenizer of bytes, and of these control tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: id_ for id_, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    return tokenizer


def build_byte_model(path: Path, *, context: int = 4096) -> Path:
    """Write the model and its tokenizer below ``path``; return ``path``."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer("<|im_start|>", "<|im_end|>")
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": _CHAT_TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=context,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path
