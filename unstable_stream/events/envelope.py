"""Define the fields that all events share, and the rules that every event family obeys.

Schema evolution follows msgspec's: a new field has a default, a meaning never changes. A changed
meaning raises ``SCHEMA_VERSION`` and adds an upcast in :mod:`unstable_stream.events.codec`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec

LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: the latest that Python's dates, and so headers, can hold."""

MOST_LEVELS: Final = 64
"""The most levels of values within a field of any form (``config``, ``lora``, ``step_info``). Whatever walks
them later may recurse: Python gives up at 1,000 levels, pydantic at 255."""

Int64: TypeAlias = Annotated[int, msgspec.Meta(extra_json_schema={"format": "int64"})]
"""A whole number that 32 bits may not hold: 64 bits in tables. Decoding does not check it."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events; subclasses set their tag, topic and key.

    Wire types only (numbers, strings, packed bytes, nested structs): no Python path is ever stored.
    """

    TOPIC: ClassVar[str]
    """The topic this family is published to."""

    SCHEMA_VERSION: ClassVar[int] = 1
    """The version this package writes; older ones are upcast, newer ones refused."""

    event_id: str
    """Deterministic UUID of what caused the event: an event published twice is recognised by it."""

    run_id: str
    """The run."""

    occurred_at_ms: Int64
    """Unix time in milliseconds. A derived event carries the time of its cause, so that it can be
    recomputed byte for byte."""

    schema_version: int = 1
    """Version of the event type's schema that the event was written with."""

    @property
    def key(self) -> str:
        """The record key: what must stay in order lives under one key."""
        return self.run_id


def unfit(values: Mapping[str, Any], levels: int = MOST_LEVELS) -> str | None:
    """Return why values of any form cannot be an event's field; ``None``: they can. It does not recurse."""
    level = list(values.values())
    for _ in range(levels):
        if not level:
            return None
        below: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                below += value.values()
            elif isinstance(value, list | tuple):
                below += value
            elif isinstance(value, int) and value.bit_length() > 64:
                return "hold a whole number of more than 64 bits"
        level = below
    return f"nest deeper than {levels} levels" if level else None
