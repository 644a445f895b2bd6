"""Tell addresses of stores from paths, and take them apart."""

from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from unstable_stream.errors import ConfigError

__all__ = ["IN_THIS_PROCESS", "checked_address", "is_address", "joined", "name_of", "owner_of"]

IN_THIS_PROCESS: Final = "memory://"
"""The store that only one process sees."""


def is_address(location: str) -> bool:
    """Tell the address of a store from a path."""
    return "://" in location


def checked_address(location: str, key: str) -> str:
    """Return a location as it is recorded: an absolute path, or an address without a slash at its end.

    ``file://`` is a path. Credentials are refused: what is configured is recorded, and read by many.

    Args:
        location: a path, or an address.
        key: the setting, for the message.

    Raises:
        ConfigError: it cannot be such a location.
    """
    if not is_address(location):
        return str(Path(location).expanduser().absolute())
    if "::" in location:
        raise ConfigError(f"{key}: {location!r} chains file systems; give one address, e.g. s3://bucket/runs")
    parts = urlsplit(location)
    if "@" in parts.netloc or parts.query or parts.fragment:
        bare = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise ConfigError(
            f"{key}: an address is recorded with the run, so it holds no user, password, query or fragment: "
            f"expected {bare}, with credentials in the environment or the files that the store's client reads"
        )
    if parts.scheme in ("file", "local"):
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"{key}: {location!r} names the host {parts.netloc}; expected file:///PATH")
        return str(Path(unquote(parts.path)).absolute())
    if not parts.netloc and not parts.path.strip("/"):
        raise ConfigError(f"{key}: {location!r} names no place in the store; expected e.g. s3://bucket/runs")
    return location.rstrip("/")


def joined(location: str, *names: str) -> str:
    """Return the location of something inside another one."""
    if is_address(location):
        return "/".join((location.rstrip("/"), *names))
    return str(Path(location, *names))


def name_of(location: str) -> str:
    """Return the last part of a location."""
    return PurePosixPath(location).name


def owner_of(location: str) -> str:
    """Return the part before the last: of a checkpoint, the run that saved it."""
    return PurePosixPath(location).parent.name
