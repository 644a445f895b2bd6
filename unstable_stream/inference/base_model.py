"""The base model that a configuration names: a directory, the tiny player, or a Hugging Face id.

Also whether it can be played and trained, by its small files, before anything is started; its license, as its
own files state it; and its tokens as text for a person, without the network.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unstable_stream.errors import ConfigError
from unstable_stream.inference.adapter_files import check_target_modules
from unstable_stream.inference.model_config import read_config

if TYPE_CHECKING:
    from unstable_stream.inference.tokenizer import FileTokenizer

_SAMPLE: Final = 2**20
"""Bytes of a large file that its fingerprint takes from the beginning and from the end."""

_FILES: Final = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model", "README.md", "LICENSE*")
"""The last two say under which license the model is (:func:`find_license`)."""

MODEL_FILES: Final = (
    *("config.json", "generation_config.json", "*.safetensors", "*.bin"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.model", "*.jinja"),
)
"""Those that make a model what it is: weights, configuration, tokenizer and chat template."""

_IN_CARD: Final = re.compile(r"^license:[ \t]*[\"']?([\w.\-]+)", re.MULTILINE)
_TEXTS: Final = (
    (re.compile(r"Apache License\s+Version 2\.0"), "apache-2.0"),
    (re.compile(r"MIT License|Permission is hereby granted, free of charge"), "mit"),
)
"""The licenses that are known by their text, by Hugging Face's names."""

_HALF_CHARACTER = "\ufffd"
# UTF-8 takes four bytes at most: what is still broken after so many tokens is no character.
_TOKENS_OF_A_CHARACTER = 4

KNOWN_TYPES: Final = frozenset(
    {
        *("llama", "mistral", "mistral3", "qwen2", "qwen3", "gemma", "gemma3", "gemma3_text", "phi3"),
        *("smollm3", "olmo2", "granite"),
    }
)
"""Types that tests have shown to play and to train. Any other one is tried without its weights, which imports
PyTorch and takes some seconds."""


def model_on_this_machine(name: str, path: str) -> str:
    """Return the directory of a base model here, resolved to ``path`` on another machine of the cluster.

    A model of Hugging Face's that is not here is fetched, in the version that the other machine has. Any
    other one must be copied by whoever owns the machines; its path is returned whether it is there or not.

    Raises:
        ConfigError: it could not be fetched.
    """
    if Path(path).is_dir() or not is_snapshot(path):
        return path
    return resolve_model(name, revision=Path(path).name)


def is_snapshot(path: str) -> bool:
    """Return whether a directory has the name that Hugging Face's cache gives: ``…/snapshots/COMMIT``."""
    return Path(path).parent.name == "snapshots"


def resolve_model(
    name: str, *, revision: str | None = None, fingerprint: str = "", weights: bool = True
) -> str:
    """Return the local directory of a base model; downloads a Hugging Face model on first use.

    Args:
        name: a directory, the id of a model at Hugging Face, or ``tiny-player``.
        revision: of a model at Hugging Face; ``None``: the newest.
        fingerprint: the recorded one of the model that is expected; empty: none was recorded.
        weights: whether the weights of a model of Hugging Face's are fetched too.

    Raises:
        ConfigError: neither a directory nor a model that can be had, or not the one that is expected; says
            what to change.
    """
    if not fingerprint:
        return _resolve(name, revision, weights)
    remedy = (
        f"the run began with a model of fingerprint {fingerprint[:12]}: put it back there (a link will do), "
        "or name the directory where it is now, with --set model=DIRECTORY where the command takes settings"
    )
    if name != "tiny-player" and model_directory(name) is None:
        raise ConfigError(f"model = {name!r}: no such directory; {remedy}")
    path = _resolve(name, revision, weights)
    if (found := model_fingerprint(Path(path))) != fingerprint:
        raise ConfigError(f"model = {name!r} is another model, of fingerprint {found[:12]}; {remedy}")
    return path


def _resolve(name: str, revision: str | None, weights: bool) -> str:
    if name == "tiny-player":
        from unstable_stream.inference.tiny_player import tiny_player_path

        return str(tiny_player_path())
    if (path := model_directory(name)) is not None:
        if not (path / "config.json").is_file():
            raise ConfigError(f"model = {name!r}: the directory has no config.json, so it holds no model")
        if weights and not _has_weights(path):
            raise ConfigError(
                f"model = {name!r}: the directory has a config.json and no weights (*.safetensors or *.bin): "
                "copy or convert the whole model"
            )
        return str(path.resolve())
    if not _may_be_id(name):
        raise ConfigError(
            f"model = {name!r}: no such directory; give a model directory, a Hugging Face id such as "
            '"Qwen/Qwen3-0.6B", or "tiny-player"'
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        wanted = [pattern for pattern in _FILES if weights or pattern != "*.safetensors"]
        return snapshot_download(name, revision=revision, allow_patterns=wanted)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"model = {name!r}: {Path.cwd()} has no such directory, and Hugging Face no such model "
            f"that could be fetched ({_first_line(error)}); correct the name, or make the directory: "
            "the examples with models/smollm2 need `make smollm2` first"
        ) from error


def model_here(name: str, revision: str | None = None) -> bool:
    """Return whether a base model is not fetched: a directory, ``tiny-player``, no id, or fetched before."""
    if model_directory(name) is not None or not _may_be_id(name):
        return True
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)


def model_directory(name: str) -> Path | None:
    """Return the directory that a model's name is the path of; ``None``: there is none that can be seen."""
    path = Path(os.path.expanduser(name))  # pathlib raises where there is no such user
    return path if os.path.isdir(path) else None  # and where a path is too long, or may not be looked at


def _may_be_id(name: str) -> bool:
    return not name.startswith(("/", ".", "~")) and name.count("/") == 1


def model_fingerprint(directory: Path, files: Sequence[str] = MODEL_FILES) -> str:
    """Return a hash that tells apart the models that one confuses in practice, in seconds for any size.

    It is over the names and sizes of the files, and the first and the last MiB of each: the shapes of the
    tensors are at the beginning of a file, and trained weights differ everywhere. Empty: none is there.
    """
    digest = hashlib.sha256()
    found = sorted({path for pattern in files for path in directory.glob(pattern) if path.is_file()})
    for path in found:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE))
            file.seek(max(size - _SAMPLE, 0))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest() if found else ""


def _has_weights(directory: Path) -> bool:
    return any(next(directory.glob(pattern), None) for pattern in ("*.safetensors", "*.bin"))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def check_model(
    model_path: str, *, plays_here: bool, trains: bool = False, targets: Sequence[str] | None = None
) -> None:
    """Check that a model can be played, and trained, as far as its configuration and layers show it.

    Args:
        model_path: its directory.
        plays_here: whether the transformers engine plays it; others refuse for themselves.
        trains: whether it is trained.
        targets: the layers that get an adapter; ``None``: none do.

    Raises:
        ConfigError: it cannot be; says why and what would do.
    """
    config = read_config(Path(model_path))
    if trains and (quantised := config.get("quantization_config")):
        method = quantised.get("quant_method", "") if isinstance(quantised, dict) else ""
        raise ConfigError(
            f"{model_path} holds quantised weights ({method or 'quantization_config in config.json'}), which "
            "are not trained: take the model that they were made from, in bfloat16, float16 or float32"
        )
    if not (plays_here or trains):
        return
    if config.get("model_type") not in KNOWN_TYPES:
        from unstable_stream.inference.transformers.trial import try_model

        try_model(model_path, plays_here=plays_here, trains=trains, targets=targets)
    elif targets is not None:
        check_target_modules(Path(model_path), targets)


def find_license(name: str, directory: Path | None) -> str | None:
    """Return Hugging Face's name of a base model's license; ``None``: its files state none that is known.

    The model card's front matter counts first, then the text of a license file, then ``config.json``.

    Args:
        name: the model as a configuration names it.
        directory: its files; ``None``: they are not on this machine.
    """
    if name == "tiny-player":
        return "mit"  # it is part of the package
    if directory is None:
        return None
    card = _text(directory / "README.md")
    front, opened, _ = card.removeprefix("---").partition("\n---")
    if card.startswith("---") and opened and (stated := _IN_CARD.search(front)):
        return stated[1]
    for file in ("LICENSE", "LICENSE.txt", "LICENSE.md"):
        text = _text(directory / file)
        for pattern, license_name in _TEXTS:
            if pattern.search(text):
                return license_name
    try:
        config = json.loads(_text(directory / "config.json") or "{}")
    except ValueError:
        return None
    value = config.get("license") if isinstance(config, dict) else None
    return value if isinstance(value, str) and value else None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def tokenizer_on_disk(base_model: str) -> "FileTokenizer | None":
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
    directory = _directory_here(base_model)
    if directory is None or not (directory / "tokenizer.json").is_file():
        return None
    return load_tokenizer(directory)


def _directory_here(name: str) -> Path | None:
    if name == "tiny-player":
        return Path(_resolve(name, None, weights=False))
    path = model_directory(name) if name else None
    if path is not None or not _may_be_id(name):
        return path
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "tokenizer.json")
    except HFValidationError:
        return None  # no name of a hub: a directory of another machine
    return Path(cached).parent if isinstance(cached, str) else None


def token_texts(tokenizer: "FileTokenizer", token_ids: Sequence[int]) -> list[str]:
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
