"""Store record headers so that values which repeat are stored once.

Names and the values of :data:`SHARED` headers form a *layout*, which is stored once and numbered; a record
keeps the number and its own values. What is read back is equal to what was appended, order included.
"""

import sqlite3
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from unstable_stream.log.local.database import begin_write

SHARED: Final = frozenset({"ce_specversion", "ce_type", "ce_source", "ce_dataschema", "content-type"})
"""Headers with few distinct values: event types times runs. All others are stored with each record."""

NO_HEADERS: Final = 0
"""The layout of a record without headers."""

_Layout: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Names with shared values, in order; ``None`` marks a value that each record keeps itself."""


_encode = msgspec.msgpack.Encoder().encode
_decode_own = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_layout = msgspec.json.Decoder(tuple[tuple[str, bytes | None], ...]).decode


class HeaderStore:
    """Turns headers into ``(layout id, own values)`` and back. It caches without a lock: one per thread."""

    def __init__(self, busy_timeout_s: float) -> None:
        self._busy_timeout_s = busy_timeout_s
        self._known: dict[tuple[str | bytes, ...], tuple[int, int]] = {}
        """By the names, followed by the shared values: the layout's number and its size in bytes."""
        self._layouts: dict[int, tuple[dict[str, bytes | None], tuple[str, ...]]] = {}

    def pack(self, connection: sqlite3.Connection, headers: Mapping[str, bytes]) -> tuple[int, bytes, int]:
        """Return the layout's number, the record's own values and the bytes that the layout spared.

        Stores a new layout at once.
        """
        if not headers:
            return NO_HEADERS, b"", 0
        own: list[str | bytes] = []
        shared: list[str | bytes] = [*headers]
        for name, value in headers.items():
            (shared if name in SHARED else own).append(value)
        key = tuple(shared)
        known = self._known.get(key)
        if known is None:
            layout = tuple((name, value if name in SHARED else None) for name, value in headers.items())
            size = sum(len(name.encode()) + len(value or b"") for name, value in layout)
            known = self._known[key] = self._register(connection, layout), size
        return known[0], _encode(own), known[1]

    def unpack(self, connection: sqlite3.Connection, layout_id: int, own: bytes) -> dict[str, bytes]:
        """Return the headers as they were appended."""
        if layout_id == NO_HEADERS:
            return {}
        known = self._layouts.get(layout_id)
        if known is None:
            known = self._layouts[layout_id] = self._load(connection, layout_id)
        template, names = known
        # The placeholders are all overwritten, which keeps the original order.
        headers = template.copy()
        headers.update(zip(names, _decode_own(own), strict=True))
        return headers  # type: ignore[return-value]

    def _register(self, connection: sqlite3.Connection, layout: _Layout) -> int:
        # In a transaction of its own: a number once handed out stays true whatever becomes of the append.
        encoded = msgspec.json.encode(layout)
        begin_write(connection, self._busy_timeout_s)
        try:
            connection.execute("INSERT OR IGNORE INTO header_layouts (layout) VALUES (?)", (encoded,))
            query = "SELECT layout_id FROM header_layouts WHERE layout = ?"
            (layout_id,) = connection.execute(query, (encoded,)).fetchone()
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return int(layout_id)

    def _load(
        self, connection: sqlite3.Connection, layout_id: int
    ) -> tuple[dict[str, bytes | None], tuple[str, ...]]:
        query = "SELECT layout FROM header_layouts WHERE layout_id = ?"
        (encoded,) = connection.execute(query, (layout_id,)).fetchone()
        layout = _decode_layout(encoded)
        return dict(layout), tuple(name for name, value in layout if value is None)
