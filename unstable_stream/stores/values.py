"""Keep values as files that are named by their digest, in a directory or a store.

A file appears whole or not at all and is never changed. So it may be written again, by whoever has the same
value, and be fetched into the host's cache once. An empty file ``NAME.lost`` beside it is a person's word
that the value is gone for good.
"""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

from unstable_stream.errors import SpilledValueError, StoreError
from unstable_stream.stores.address import is_address, name_of
from unstable_stream.stores.cache import HostCache
from unstable_stream.stores.store import Store

__all__ = ["LOST", "keep_value", "kept_value"]

LOST: Final = ".lost"
"""The end of the name of the empty file that says so."""


def keep_value(location: str, value: bytes) -> None:
    """Write a value to its location, so that it survives a power cut.

    Raises:
        StoreUnavailableError: the store was away for too long.
        StoreError: the store refuses, or the directory cannot be written.
    """
    if is_address(location):
        _store_of(location).write(name_of(location), value)
        return
    path = Path(location)
    staging = path.with_name(f".tmp-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with staging.open("wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            staging.rename(path)
        finally:
            staging.unlink(missing_ok=True)
        for directory in (path.parent, path.parent.parent):
            _sync(directory)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}; free space there, or give access") from error


def kept_value(location: str, sha256: str) -> bytes | None:
    """Return a value, compared with its digest; ``None``: a person has said that it is lost.

    Raises:
        SpilledValueError: it is not there, or damaged.
        StoreUnavailableError: the store was away for too long.
        StoreError: the store refuses, or the host's cache cannot be written.
    """
    try:
        return _fetched(location, sha256) if is_address(location) else _read(Path(location), sha256)
    except SpilledValueError:
        if _is_given_up(location):
            return None
        raise


def _read(path: Path, sha256: str) -> bytes:
    try:
        value = path.read_bytes()
    except OSError as error:
        raise SpilledValueError(
            f"{path} cannot be read on this machine ({error.strerror}): put the file back from a backup; if "
            "another machine wrote it, set learner.ckpt_root to a store that both reach; if it is gone for "
            f"good, make an empty file {path}{LOST}"
        ) from error
    _check(hashlib.sha256(value).hexdigest(), sha256, str(path))
    return value


def _fetched(address: str, sha256: str) -> bytes:
    name = name_of(address)

    def is_whole(directory: Path) -> bool:
        path = directory / name
        return path.is_file() and _sha256_of_file(path) == sha256

    def fetch(directory: Path) -> None:
        path = directory / name
        try:
            _store_of(address).get(name, path)
        except FileNotFoundError as error:
            raise SpilledValueError(
                f"{address} is not in the store: put the file back from a backup; if it is gone for good, "
                f"make an empty file {address}{LOST}"
            ) from error
        try:
            _check(_sha256_of_file(path), sha256, address)
        except SpilledValueError:
            path.unlink()
            raise

    with HostCache.of_host().fetched(address, is_whole, fetch) as directory:
        return (directory / name).read_bytes()


def _check(found: str, expected: str, location: str) -> None:
    if found != expected:
        raise SpilledValueError(
            f"{location} is damaged: its sha256 is {found}, expected {expected}: put the file back from a "
            f"backup; if it is gone for good, make an empty file {location}{LOST}"
        )


def _is_given_up(location: str) -> bool:
    if is_address(location):
        return _store_of(location).read(f"{name_of(location)}{LOST}") is not None
    return Path(f"{location}{LOST}").is_file()


def _store_of(address: str) -> Store:
    return Store(address.rpartition("/")[0])


def _sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
