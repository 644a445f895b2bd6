"""Look whether this machine has what a run needs, and say what to do where not; nothing heavy is loaded."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Final, Literal

from unstable_stream.api.place import Place
from unstable_stream.errors import UnstableStreamError
from unstable_stream.inference.tiny_player import tiny_player_path

_GB: Final = 1e9
_LEAST_GB: Final = 0.5
_ENOUGH_GB: Final = 5.0
_GPU_TIMEOUT_S: Final = 60.0
"""Torch takes half a minute to load on a cold disk."""
_BUNDLED: Final = ("model.safetensors", "config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Examined:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "warn", "fail"]
    """``fail``: the quickstart cannot run like this; ``warn``: something else may not."""
    found: str
    remedy: str = ""
    """The way out; empty: none is needed."""


def examine(place: Place) -> list[Examined]:
    """Return what was found of Python, packages, GPUs, Ray, the log, the disk, models; change nothing.

    A log on Kafka and the address of a Ray cluster are tried, for some seconds.
    """
    return [
        Examined("python", "ok", f"{sys.version.split()[0]} at {sys.executable}"),
        *_packages(),
        _gpus(),
        _ray(),
        _log(place),
        examine_disk(place),
        _bundled(),
        _hub(),
    ]


def _packages() -> Iterator[Examined]:
    try:
        from packaging.requirements import Requirement

        wanted = [Requirement(each) for each in metadata.requires("unstable_stream") or ()]
    except ImportError as error:  # of an installed package, of ``packaging``, or of its own metadata
        yield Examined("packages", "warn", f"versions unknown: {error}", "install unstable_stream with pip")
        return
    optional: dict[str, dict[str, str | None]] = {}
    seen = set()
    for each in wanted:
        version = _version(each.name)
        needed = each.marker is None or each.marker.evaluate({"extra": "train"})
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", str(each.marker))
        if needed and each.name not in seen:
            seen.add(each.name)
            install = f"pip install '{each.name}{each.specifier}'"
            if version is None:
                yield Examined(each.name, "fail", "not installed", "pip install 'unstable_stream[train]'")
            elif not each.specifier.contains(version, prereleases=True):
                yield Examined(each.name, "warn", f"{version}, tested with {each.specifier}", install)
            else:
                yield Examined(each.name, "ok", version + (_torch_build() if each.name == "torch" else ""))
        elif extra is not None and extra[1] != "dev" and each.name not in seen:
            optional.setdefault(extra[1], {})[each.name] = version
    for name, versions in sorted(optional.items()):
        lacking = [each for each, version in versions.items() if version is None]
        have = ", ".join(f"{each} {version}" for each, version in versions.items() if version is not None)
        told = f"not installed: {', '.join(lacking)}; optional" if lacking else have
        yield Examined(f"[{name}]", "ok", told, f"pip install 'unstable_stream[{name}]'" if lacking else "")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch_build() -> str:
    """Return what torch was built for, read from its file: to import it takes seconds."""
    found = util.find_spec("torch")
    file = Path(found.origin).with_name("version.py") if found and found.origin else None
    text = file.read_text(encoding="utf-8") if file is not None and file.is_file() else ""
    built = re.search(r"^cuda\b.*=\s*'([\d.]+)'", text, re.MULTILINE)
    return f", built for CUDA {built[1]}" if built else ", built for the CPU"


def _gpus() -> Examined:
    smi = shutil.which("nvidia-smi")
    listed = _output(smi, "--query-gpu=name,memory.total", "--format=csv,noheader") if smi else ""
    if not listed:
        return Examined("gpu", "ok", "none found; the quickstart needs none")
    told = "; ".join(listed.splitlines())
    asked = _output(sys.executable, "-c", "import torch; print(torch.cuda.is_available())")
    if asked == "True":
        return Examined("gpu", "ok", told)
    remedy = "install torch for your CUDA driver (https://pytorch.org/get-started/locally)"
    return Examined("gpu", "warn", f"{told}; torch cannot use it", remedy)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GPU_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _ray() -> Examined:
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return Examined("ray cluster", "ok", "no RAY_ADDRESS: a run starts Ray on this machine")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return Examined("ray cluster", "ok", f"RAY_ADDRESS={address}")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError as error:
        remedy = "start the cluster (ray start --head), or unset RAY_ADDRESS"
        return Examined("ray cluster", "fail", f"RAY_ADDRESS={address} does not answer: {error}", remedy)
    return Examined("ray cluster", "ok", f"RAY_ADDRESS={address} answers")


def _log(place: Place) -> Examined:
    if place.log == "local":
        told = "local, a file in the data directory"
        return Examined("log", "ok", told + ("" if place.data.log.is_file() else ", made by the first run"))
    try:
        topics = place.ask_log(lambda log: log.topics())
    except UnstableStreamError as error:
        return Examined("log", "fail", str(error), "start the broker or correct --log (UNSTABLE_STREAM_LOG)")
    return Examined("log", "ok", f"{place.log} answers; {len(topics)} topics")


def examine_disk(place: Place) -> Examined:
    """Return whether the disk of a data directory has room, and whether it can be written."""
    here = place.root.absolute()
    there = next(each for each in (here, *here.parents) if each.exists())
    free_gb = shutil.disk_usage(there).free / _GB
    told = f"{here}: {free_gb:,.1f} GB free"
    if not (there.is_dir() and os.access(there, os.W_OK)):
        return Examined("data", "fail", f"{here} cannot be written", "name another directory with --data")
    if free_gb < _ENOUGH_GB:
        state: Literal["warn", "fail"] = "fail" if free_gb < _LEAST_GB else "warn"
        return Examined("data", state, told, "free some, or name a directory on another disk with --data")
    return Examined("data", "ok", told)


def _bundled() -> Examined:
    lacking = [name for name in _BUNDLED if not (tiny_player_path() / name).is_file()]
    if lacking:
        remedy = "install unstable_stream again"
        return Examined("tiny-player", "fail", f"{', '.join(lacking)} missing", remedy)
    return Examined("tiny-player", "ok", "bundled model and tokenizer are there")


def _hub() -> Examined:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    fetched = len(list(cache.glob("models--*"))) if os.access(cache, os.R_OK) else 0
    told = f"{fetched} models in {cache}"
    if any(os.environ.get(name, "0").lower() in ("1", "true", "yes", "on") for name in _OFFLINE):
        remedy = f"unset {' and '.join(_OFFLINE)} to fetch others; tiny-player needs none"
        return Examined("hugging face", "warn", f"offline; {told}", remedy)
    return Examined("hugging face", "ok", told + ("; a token is set" if os.environ.get("HF_TOKEN") else ""))


_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
