"""Know a record by its content: after a log has lost its end, another one may have the same offset."""

import hashlib
from typing import Final

__all__ = ["content_digest"]

_DIGEST_BYTES: Final = 8


def content_digest(key: str, timestamp_ms: int, value: bytes) -> str:
    """Return hexadecimal digits that differ for records of different content."""
    digest = hashlib.blake2b(value, digest_size=_DIGEST_BYTES, salt=b"record")
    # The lengths keep the end of one part from being taken for the beginning of the next.
    digest.update(f"\0{len(value)} {timestamp_ms} {key}".encode())
    return digest.hexdigest()
