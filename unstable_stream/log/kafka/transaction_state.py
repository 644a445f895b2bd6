"""Ask a transaction's coordinator what became of the last transaction of a transactional id (KIP-664)."""

from collections.abc import Iterable
from typing import Any, Final

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

__all__ = ["DescribeTransaction", "was_given_up"]

_NOT_FOUND: Final = 105
_GIVEN_UP: Final = frozenset({"Ongoing", "PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
"""States after which a new producer's id leaves an aborted transaction behind. ``Empty`` tells nothing: a
producer has got an id and begun no transaction since."""


class _Response(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transactions",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("timeout_ms", Int32),
                ("start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _Request(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 65
    API_VERSION = 0
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(("transactional_ids", CompactArray(CompactString("utf-8"))), ("tags", TaggedFields))


class DescribeTransaction(Request[_Request]):  # type: ignore[misc]
    """The request ``DescribeTransactions`` for one transactional id; aiokafka has none."""

    API_KEY = 65

    def __init__(self, transactional_id: str) -> None:
        """Ask about this id."""
        self._transactional_id = transactional_id

    def build(self, request_struct_class: type[_Request]) -> _Request:
        """Return what is sent."""
        return request_struct_class([self._transactional_id], {})

    @staticmethod
    def codes(answer: Any) -> Iterable[int]:
        """Return the errors of an answer; that nobody knows the id is none."""
        return [code for code, *_ in answer.transactions if code != _NOT_FOUND]


def was_given_up(answer: Any) -> bool:
    """Return whether the id's last transaction is surely not committed, and never will be once a new producer
    has got an id.
    """
    return any(not code and state in _GIVEN_UP for code, _, state, *_ in answer.transactions)
