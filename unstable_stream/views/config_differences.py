"""Tell how the configurations of runs differ."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["config_differences"]


def config_differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the keys that the configurations do not share, each with its value in every one.

    ``Any``: JSON.
    """
    flat = [_flatten(config) for config in configs]
    keys = sorted({key for one in flat for key in one})
    return [
        (key, [one.get(key, "not set") for one in flat])
        for key in keys
        if len({one.get(key, "not set") for one in flat}) > 1
    ]


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """``Any``: JSON."""
    if not isinstance(value, dict):
        return {prefix: json.dumps(value, ensure_ascii=False)}
    return {
        name: text
        for key, item in value.items()
        for name, text in _flatten(item, f"{prefix}.{key}" if prefix else str(key)).items()
    }
