"""A tiny random Qwen3, its word-level tokenizer and random LoRA adapters, as ordinary model directories.

Small enough for a test on two cores, real enough to load through transformers, PEFT and vLLM: grouped
key/value heads, head size 32 (the smallest vLLM's CPU attention takes), tied embeddings, a chat template.
"""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from unstable_stream.inference.engine import Adapter

_SPECIALS = ("<pad>", "<eos>", "<unk>", "<user>", "<assistant>")
_MOVES = tuple(f"[{number}]" for number in range(9))
_WORDS = (
    *("you", "are", "player", "X", "O", "to", "move", "the", "board", "is", "game", "over", "win", "lose"),
    *("draw", "take", "stones", "left", "choose", "a", "number", "from", "up", "or", "down", "turn"),
)
VOCABULARY = (*_SPECIALS, *_MOVES, *_WORDS)
"""Every token, at the index that is its id."""
PAD_TOKEN_ID = 0
EOS_TOKEN_ID = 1

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<user> ' if message['role'] == 'user' else '<assistant> ' }}"
    "{{ message['content'] }}{{ ' <eos> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)

_LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build_tiny_model(path: Path, *, seed: int = 0, context: int = 256, hidden_size: int = 128) -> Path:
    """Write a random 2-layer Qwen3 (hidden 128 unless told) and its tokenizer below ``path``; returns
    ``path``.

    Weights are drawn wide (0.15 instead of 0.02), so that next-token distributions are far from uniform and a
    wrong position, mask or adapter shows.
    """
    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=hidden_size,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=context,
        initializer_range=0.15,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_TOKEN_ID,
        pad_token_id=PAD_TOKEN_ID,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(path)
    _tokenizer().save_pretrained(path)
    return path


def build_adapter(model_path: Path, path: Path, seed: int, *, rank: int = 8) -> Adapter:
    """Write a random LoRA adapter of plain effect below ``path``; its uid is the directory's name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=_LORA_TARGETS, task_type="CAUSAL_LM")
        model = get_peft_model(base, lora)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                # PEFT starts B at zero, which would make every adapter the base model.
                torch.nn.init.normal_(parameter, std=0.1)
        model.save_pretrained(path)
    return Adapter(uid=path.name, path=str(path))


def _tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
    )
