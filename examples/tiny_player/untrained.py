"""Write a tiny player that has learned nothing: the tokenizer of 40 words, and random weights.

The games and the training that make it play legally are commands; README.md beside this file has them::

    python examples/tiny_player/untrained.py untrained
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen3Config, Qwen3ForCausalLM

END = "<end>"
PAD = "<pad>"
UNKNOWN = "<unk>"
WORDS = [
    PAD,
    END,
    UNKNOWN,
    "SimpleTak",
    "TicTacToe",
    "move:",
    "O",
    "X",
    *(str(cell) for cell in range(16)),
    *(f"[{cell}]" for cell in range(16)),
]
"""40 words; the position is the token id."""


def build_tokenizer() -> Tokenizer:
    """Return the tokenizer: words apart by white space, nothing added."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Words that belong to no subword scheme are joined by one space.
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens([PAD, END, UNKNOWN])
    return tokenizer


def model_config() -> Qwen3Config:
    """Return the architecture: ordinary Qwen3, head size 32 (the least that vLLM's CPU attention takes)."""
    return Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=WORDS.index(END),
        pad_token_id=WORDS.index(PAD),
        architectures=["Qwen3ForCausalLM"],
        # The weights are stored in half the bytes but computed with in full: float32 is the fastest on CPU.
        dtype="float32",
    )


def save(model: Qwen3ForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write an ordinary Hugging Face directory, the weights as float16."""
    out.mkdir(parents=True, exist_ok=True)
    model.config.to_json_file(out / "config.json", use_diff=True)
    (out / "generation_config.json").write_text(
        json.dumps(
            {"do_sample": True, "eos_token_id": WORDS.index(END), "pad_token_id": WORDS.index(PAD)}, indent=2
        )
        + "\n"
    )
    save_file(
        {name: weight.half().contiguous() for name, weight in model.state_dict().items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    (out / "model.safetensors").chmod(0o644)  # safetensors makes it private; a package's files are not
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": END,
                "pad_token": PAD,
                "unk_token": UNKNOWN,
                "model_max_length": model.config.max_position_embeddings,
                "clean_up_tokenization_spaces": False,
            },
            indent=2,
        )
        + "\n"
    )


def main() -> None:
    """Write the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="directory to write the model to")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    model = Qwen3ForCausalLM(model_config())
    save(model, build_tokenizer(), options.out)
    print(f"saved {sum(weight.numel() for weight in model.parameters()):,} parameters to {options.out}")


if __name__ == "__main__":
    main()
