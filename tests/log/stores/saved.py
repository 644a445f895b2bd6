"""Checkpoints as a learner saves them, without a learner."""

import hashlib
import json
from pathlib import Path

from unstable_stream.log.stores.adapter_format import CONFIG_FILE, WEIGHTS_FILE
from unstable_stream.log.stores.store import Store


def save(directory: Path, weights: bytes = b"weights", **others: bytes) -> str:
    """Write a checkpoint's files; return the digest of its weights."""
    files = {WEIGHTS_FILE: weights, CONFIG_FILE: b"{}", "optimizer.pt": b"momenta" * 100} | {
        name.replace("_", "."): content for name, content in others.items()
    }
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    (directory / "state.json").write_text(json.dumps({"format": 1, "sha256": digests}))
    return digests[WEIGHTS_FILE]


def put(address: str, directory: Path) -> None:
    """Upload a directory."""
    store = Store(address)
    for path in directory.iterdir():
        store.put(path, path.name)
