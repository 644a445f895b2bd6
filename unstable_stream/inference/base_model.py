"""The base model that a configuration names: a directory, the tiny player, or a Hugging Face id."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from unstable_stream.errors import ConfigError

_SAMPLE: Final = 2**20
"""Bytes of a large file that its fingerprint takes from the beginning and from the end."""

_FILES: Final = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model", "README.md", "LICENSE*")
"""The last two say under which license the model is (:mod:`unstable_stream.inference.model_license`)."""

MODEL_FILES: Final = (
    *("config.json", "generation_config.json", "*.safetensors", "*.bin"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.model", "*.jinja"),
)
"""Those that make a model what it is: weights, configuration, tokenizer and chat template."""


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
