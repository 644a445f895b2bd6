"""Tell addresses of stores from paths, take them apart, and refuse what is neither, whoever recorded it."""

import re
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from unstable_stream.errors import ConfigError

IN_THIS_PROCESS: Final = "memory://"
"""The store that only one process sees."""
_KINDS: Final = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "file", "local", "memory")
"""The stores that may be asked. fsspec knows many more: some run code, read any file or call any host."""
_ACCEPTED: Final = "expected a directory, or an address such as s3://bucket/runs, gs://… or az://…"
_LONGEST_ADDRESS: Final = 1024
"""Characters; the longest key of S3 has as many bytes."""
_LONGEST_PATH: Final = 4095
_LONGEST_PART: Final = 255
"""Bytes of a path, and of a name in it: more is refused by every common file system."""
_SHOWN: Final = 200
LONGEST_NAME: Final = 150
"""Bytes of a run's name: its id is 21 longer, and becomes a part of file names."""
_LONGEST_ID: Final = 200
"""Bytes; files are named by an id with something before or behind it."""


def path_part(name: str, what: str, *, longest: int = _LONGEST_ID) -> str:
    """Return a name from a record or a person if it is one plain part of a path, whatever it is joined to.

    Args:
        name: e.g. the id of a run.
        what: what it names, for the message.
        longest: the most bytes.

    Raises:
        ConfigError: it would lead to another directory, be hidden, be too long, or cannot be printed.
    """
    plain = name.isprintable() and not set(name) & {"/", "\\"}  # only such text is sure to have an encoding
    if name and plain and name == name.strip(". ") and len(name.encode()) <= longest:
        return name
    raise ConfigError(
        f"{what} {_cut(name)} cannot be part of a file name: expected at most {longest} bytes of printable "
        "text without / or \\, and no dot or blank first or last"
    )


def is_address(location: str) -> bool:
    """Tell the address of a store from a path."""
    return "://" in location


def checked_address(location: str, key: str) -> str:
    """Return a location as it is recorded: an absolute path, or an address without a slash at its end.

    ``file://`` is a path. Credentials are refused: what is configured is recorded, and read by many. What a
    record names goes through here too before anything is asked of a store.

    Args:
        location: a path, or an address.
        key: the setting, or what the record names, for the message.

    Raises:
        ConfigError: it cannot be such a location.
    """
    if not is_address(location):
        return _checked_path(location, key)
    shown = _without_secrets(location)
    if "::" in location:
        raise ConfigError(f"{key}: {shown} chains file systems; give one address, e.g. s3://bucket/runs")
    if len(location) > _LONGEST_ADDRESS or not location.isprintable() or " " in location:
        raise ConfigError(
            f"{key}: {shown} is no address: expected up to {_LONGEST_ADDRESS} printable characters without "
            "blanks"
        )
    kind = location.partition("://")[0]
    if kind not in _KINDS:
        raise ConfigError(f"{key}: {shown} is in no kind of store that is used here; {_ACCEPTED}")
    try:
        parts = urlsplit(location)
    except ValueError as error:
        raise ConfigError(f"{key}: {shown} is no address: {error}") from error
    if set(parts.netloc) & set("@:") or parts.query or parts.fragment:
        raise ConfigError(
            f"{key}: an address is recorded with the run, so it holds no user, password, query or fragment: "
            f"expected {_bare(location)}, with credentials in the environment or the files that the store's "
            "client reads"
        )
    if kind in ("file", "local"):
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"{key}: {shown} names the host {parts.netloc}; expected file:///PATH")
        return _checked_path(unquote(parts.path), key)
    if not parts.netloc and not parts.path.strip("/"):
        raise ConfigError(f"{key}: {shown} names no place in the store; expected e.g. s3://bucket/runs")
    if ".." in parts.path.split("/"):
        raise ConfigError(f"{key}: {shown} goes up by '..', which a store does not: name the place itself")
    return location.rstrip("/")


def _checked_path(location: str, key: str) -> str:
    long = len(_bytes(location)) > _LONGEST_PATH or any(
        len(_bytes(part)) > _LONGEST_PART for part in location.split("/")
    )
    if not location or "\0" in location or long:
        raise ConfigError(f"{key}: {_cut(location)} cannot be a path: it is empty, too long, or holds a null")
    try:
        return str(Path(location).expanduser().absolute())
    except RuntimeError as error:
        raise ConfigError(f"{key}: {_cut(location)}: {error}") from error  # ~nobody


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _bare(address: str) -> str:
    """Return an address without user, password, query and fragment."""
    return re.split(r"[?#]", re.sub(r"://.*@", "://", address, flags=re.DOTALL), maxsplit=1)[0]


def _without_secrets(address: str) -> str:
    return _cut(_bare(address))


def _cut(text: str) -> str:
    """Return a text for a message: escaped, and the beginning of a long one."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


def joined(location: str, *names: str) -> str:
    """Return the location of something inside another one.

    Raises:
        ConfigError: a name would lead elsewhere; see :func:`path_part`.
    """
    for name in names:
        path_part(name, "name")
    if is_address(location):
        return "/".join((location.rstrip("/"), *names))
    return str(Path(location, *names))


def name_of(location: str) -> str:
    """Return the last part of a location."""
    return PurePosixPath(location).name


def owner_of(location: str) -> str:
    """Return the part before the last: of a checkpoint, the run that saved it."""
    return PurePosixPath(location).parent.name
