"""Make the tables of docs/explanation/memory.md: the longest rows that a learner's GPU has memory for."""

import itertools

from unstable_stream.inference.model_config import ModelShape
from unstable_stream.runs.config import parse_config
from unstable_stream.services.launch.memory import GIB, learner_gpu_bytes

BEGIN, END = "<!-- longest rows: begin -->\n", "<!-- longest rows: end -->\n"
TRAINED = ("lora", "all")
CARDS = (12, 16, 24, 48, 80)
"""GiB."""
USED = 0.95
"""The share of a card that is counted on."""
STEP = 256
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def _shape(
    parameters: int, layers: int, hidden: int, intermediate: int, heads: int, head_size: int, vocabulary: int
) -> ModelShape:
    return ModelShape(
        parameters=parameters,
        stored_bytes=2 * parameters,
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        key_heads=8,
        head_size=head_size,
        vocabulary=vocabulary,
        max_positions=32_768,
    )


MODELS = {
    "Llama 3.2 1B": _shape(1_235_814_400, 16, 2048, 8192, 32, 64, 128_256),
    "Qwen3 1.7B": _shape(1_720_574_976, 28, 2048, 6144, 16, 128, 151_936),
    "Llama 3.2 3B": _shape(3_212_749_824, 28, 3072, 8192, 24, 128, 128_256),
    "Qwen3 4B": _shape(4_022_468_096, 36, 2560, 9728, 32, 128, 151_936),
    "Qwen3 8B": _shape(8_190_735_360, 36, 4096, 12288, 32, 128, 151_936),
}
"""From their configurations."""


def longest_row(shape: ModelShape, card_gib: int, *, trained: str, recompute: bool) -> int:
    """Return the most tokens of a row of prompt and answer, a multiple of 256; 0: not even so many."""

    def fits(tokens: int) -> bool:
        config = parse_config(
            {
                "model": "a model",
                "train_envs": [{"env_id": "SimpleTak-v0-train"}],
                "lora": {"lora_rank": 32, "lora_alpha": 32, "target_modules": MODULES},
                "sampling": {"max_tokens": 4096},
                "learner": {
                    "parameters": trained,
                    "mini_batch_size": 1,
                    "max_train_len": tokens,
                    "activation_checkpointing": recompute,
                },
            }
        )
        return learner_gpu_bytes(config, shape) <= USED * card_gib * GIB

    low, high = 0, shape.max_positions // STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * STEP) else (low, middle - 1)
    return low * STEP


def table() -> str:
    """Return the table."""
    rows = [
        "| Model | `parameters` | `activation_checkpointing` | "
        + " | ".join(f"{card} GiB" for card in CARDS)
        + " |",
        "|---|---|---|" + "---|" * len(CARDS),
    ]
    for name, shape in MODELS.items():
        for trained, recompute in itertools.product(TRAINED, (False, True)):
            found = [longest_row(shape, card, trained=trained, recompute=recompute) for card in CARDS]
            cells = " | ".join(f"{row:,}" if row else "–" for row in found)
            rows.append(f"| {name} | `{trained}` | {'yes' if recompute else 'no'} | {cells} |")
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """Return the page with the table written anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"
