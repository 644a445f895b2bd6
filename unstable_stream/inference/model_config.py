"""Read a model's ``config.json``, whatever names its authors gave to things."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from unstable_stream.errors import ConfigError

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
