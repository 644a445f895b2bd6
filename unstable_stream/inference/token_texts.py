"""Turn single sampled tokens into text for a person who reads a completion, without the network."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unstable_stream.errors import ConfigError

if TYPE_CHECKING:
    from unstable_stream.inference.tokenizer import Tokenizer

_HALF_CHARACTER = "\ufffd"
# UTF-8 takes four bytes at most: what is still broken after so many tokens is no character.
_TOKENS_OF_A_CHARACTER = 4


def tokenizer_on_disk(base_model: str) -> "Tokenizer | None":
    """Return the tokenizer of a run's base model, or ``None`` where this machine does not have it.

    Args:
        base_model: as a checkpoint names it: a directory, ``tiny-player``, or a hub name that is in the
            Hugging Face cache.

    Raises:
        ConfigError: Its files are there and cannot be read.
    """
    try:
        from unstable_stream.inference.tokenizer import load_tokenizer
    except ModuleNotFoundError:
        return None  # a light installation
    directory = _directory(base_model)
    if directory is None or not (directory / "tokenizer.json").is_file():
        return None
    return load_tokenizer(directory)


def _directory(base_model: str) -> Path | None:
    if not base_model:
        return None
    if base_model == "tiny-player":
        from unstable_stream.inference.tiny_player import tiny_player_path

        return tiny_player_path()
    if Path(base_model).is_dir():
        return Path(base_model)
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        cached = huggingface_hub.try_to_load_from_cache(base_model, "tokenizer.json")
    except HFValidationError:
        return None  # no hub name: a directory of another machine
    return Path(cached).parent if isinstance(cached, str) else None


def token_texts(tokenizer: "Tokenizer", token_ids: Sequence[int]) -> list[str]:
    """Return the text each token adds, special tokens included; joined, they are the whole text.

    A character made of several tokens belongs to the last of them; the others add nothing.

    Raises:
        ConfigError: A token the tokenizer does not have: it is another model's.
    """
    texts: list[str] = []
    # How a token looks (a space in front of it) depends on the one before it, so it is decoded together with
    # the characters before: those are ids[context:done], and what comes after is new.
    context = done = 0
    for end in range(1, len(token_ids) + 1):
        try:
            before = tokenizer.decode(token_ids[context:done], skip_special=False)
            after = tokenizer.decode(token_ids[context:end], skip_special=False)
        except OverflowError as error:
            raise ConfigError(f"token {token_ids[end - 1]} is not one of this tokenizer") from error
        unfinished = after.endswith(_HALF_CHARACTER) and end - done < _TOKENS_OF_A_CHARACTER
        if unfinished and end < len(token_ids):
            texts.append("")
        else:
            texts.append(after[len(before) :])
            context, done = done, end
    return texts
