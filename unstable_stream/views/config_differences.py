"""Tell how the configurations of runs differ."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["config_differences"]

_NOT_SET: Final = "not set"


def config_differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the keys that the configurations do not share, each with its value in every one.

    A list of tables, such as opponents, is one value: only the keys that tell its tables apart are told.
    ``Any``: JSON.
    """
    flat = [_flatten(config) for config in configs]
    keys = sorted({key for one in flat for key in one})
    values = [(key, [one.get(key, _NOT_SET) for one in flat]) for key in keys]
    return [(key, _told(each)) for key, each in values if any(value != each[0] for value in each)]


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """``Any``: JSON."""
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        name: item
        for key, below in value.items()
        for name, item in _flatten(below, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def _told(values: Sequence[Any]) -> list[str]:
    """``Any``: JSON."""
    lists = [value for value in values if isinstance(value, list)]
    tables = [table for each in lists for table in each if isinstance(table, dict)]
    keys = {key for table in tables for key in table}
    told = {key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)} or keys

    def short(value: Any) -> str:
        if value is _NOT_SET:
            return _NOT_SET
        if isinstance(value, list):
            value = [
                {key: item for key, item in each.items() if key in told} if isinstance(each, dict) else each
                for each in value
            ]
        return json.dumps(value, ensure_ascii=False)

    return [short(value) for value in values]
