"""The shape of a base model, from ``config.json`` and the headers of its weights; loads no library."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path

from unstable_stream.errors import ConfigError
from unstable_stream.inference.adapter_files import tensors_of
from unstable_stream.inference.model_config import (
    context_tokens,
    read_config,
    read_json,
    text_config,
    vocabulary_size,
)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that the memory of a causal language model follows from."""

    parameters: int
    """Stored numbers; a head that is tied to the embedding counts once."""
    stored_bytes: int
    """Size of the weights on disk."""
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    max_positions: int
    tied: bool = False
    """Whether the output head is the embedding."""

    @property
    def token_values(self) -> int:
        """Numbers that a token keeps in a key-value cache."""
        return 2 * self.layers * self.key_heads * self.head_size

    def linear_features(self, module: str) -> tuple[int, int] | None:
        """Return inputs and outputs of a projection of a layer; ``None``: not known by this name."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }.get(module)


def read_shape(model_path: Path | str) -> ModelShape:
    """Read the shape of a model in a directory saved by transformers.

    Raises:
        ConfigError: the directory holds no model with weights as safetensors, or one of an unknown form.
    """
    directory = Path(model_path)
    try:
        whole = read_config(directory)
        config = text_config(whole)
        context = context_tokens(whole, read_json(directory / "tokenizer_config.json"))
        rows = vocabulary_size(whole)
        if context is None or rows is None:
            raise ValueError("config.json gives no context length, or no vocabulary")
        named = [
            pair for path in sorted(directory.glob("*.safetensors")) for pair in tensors_of(path).items()
        ]
        tensors = [tensor for _, tensor in named]
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        return ModelShape(
            parameters=sum(math.prod(tensor["shape"]) for tensor in tensors),
            stored_bytes=sum(tensor["data_offsets"][1] - tensor["data_offsets"][0] for tensor in tensors),
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(config["intermediate_size"]),
            heads=heads,
            key_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or hidden // heads),
            vocabulary=rows,
            max_positions=context,
            tied="lm_head.weight" not in dict(named),
        )
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ConfigError(
            f"{directory}: its memory cannot be foretold ({type(error).__name__}: {error}); expected "
            "config.json and *.safetensors of a decoder as transformers saves them"
        ) from error
