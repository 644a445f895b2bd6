"""Read a model's ``config.json``, whatever names its authors gave to things, and its shape.

The shape is that of ``config.json`` and the headers of the weights; no library is loaded.
"""

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from unstable_stream.errors import ConfigError
from unstable_stream.inference.adapter_files import tensors_of

_CONTEXT: Final = (
    "max_position_embeddings",
    "n_positions",  # GPT-2
    "n_ctx",
    "max_seq_len",  # MPT, DBRX
    "max_sequence_length",
    "max_seq_length",
    "seq_length",  # ChatGLM, Bloom
)
_TEXT: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Of a model that also takes images or sound: the section of its language model."""
_SANE_TOKENS: Final = 100_000_000
"""Above it a length is no length: transformers writes 1e30 for a tokenizer without one."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file, or an empty one if there is no file: these files are optional."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def read_config(directory: Path) -> dict[str, Any]:
    """Return a model's configuration; empty if the directory has none.

    Some files leave out what is the default of the model's type (Gemma 3 of 4B and more): transformers, which
    takes seconds to load, knows that.
    """
    config = read_json(directory / "config.json")
    if "model_type" in config and None in (context_tokens(config), vocabulary_size(config)):
        import transformers

        try:
            return dict(transformers.AutoConfig.from_pretrained(directory).to_dict())
        except (OSError, ValueError, KeyError):  # a type that it does not know
            return config
    return config


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part that describes the language model: a section, or the whole."""
    for name in _TEXT:
        if isinstance(section := config.get(name), Mapping):
            return text_config(section)
    return config


def context_tokens(
    config: Mapping[str, Any], tokenizer_config: Mapping[str, Any] | None = None
) -> int | None:
    """Return the most tokens that a model takes, prompt and answer together; ``None``: nothing says it.

    As transformers treats it, a rotary scaling changes nothing: ``max_position_embeddings`` is with it. The
    tokenizer's ``model_max_length`` counts where the model's own configuration says nothing.
    """
    found = [section.get(name) for section in (text_config(config), config) for name in _CONTEXT]
    found.append((tokenizer_config or {}).get("model_max_length"))
    return next((each for each in _numbers(found) if 0 < each <= _SANE_TOKENS), None)


def vocabulary_size(config: Mapping[str, Any]) -> int | None:
    """Return the number of rows of the embedding; ``None``: the configuration does not say."""
    found = (section.get("vocab_size") for section in (text_config(config), config))
    return next(_numbers(found), None)


def token_ids(value: object) -> set[int]:
    """Return the ids of ``eos_token_id``: a number, several, or none."""
    return set(_numbers(value if isinstance(value, list | tuple) else [value]))


def _numbers(values: Iterable[object]) -> Iterator[int]:
    found = (value for value in values if isinstance(value, int | float) and not isinstance(value, bool))
    return (int(value) for value in found if math.isfinite(value))


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
