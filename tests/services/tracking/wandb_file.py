"""Read what W&B wrote offline, as its server would: records in the framing of LevelDB's log."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

_BLOCK = 32768
_FULL, _LAST = 1, 4


def _records(data: bytes) -> Iterator[Any]:
    # It takes a second of each process that collects tests.
    from wandb.proto import wandb_internal_pb2

    assert data[:4] == b":W&B"
    at, parts = 7, b""
    while at < len(data):
        left = _BLOCK - at % _BLOCK
        if left < 7:  # no room for a header: the rest of the block is padding
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (_FULL, _LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def numbered_rows(directory: Path) -> tuple[list[tuple[int, int]], list[tuple[str, int]]]:
    """Return W&B's number and the update of each row, and the run and row that the files are forked from."""
    rows: list[tuple[int, int]] = []
    forks: list[tuple[str, int]] = []
    for path in sorted(directory.rglob("*.wandb")):
        for record in _records(path.read_bytes()):
            if record.run.branch_point.run:
                forks.append((record.run.branch_point.run, int(record.run.branch_point.value)))
            rows += [
                (record.history.step.num, int(float(item.value_json)))
                for item in record.history.item
                if (item.key or item.nested_key[0]) == "update"
            ]
    return rows, forks


def history_of(directory: Path) -> tuple[set[tuple[str, str]], list[dict[str, float]]]:
    """Return (run id, project) of the files below a directory, and the logged rows with ``_timestamp``."""
    runs: set[tuple[str, str]] = set()
    rows: list[dict[str, float]] = []
    for path in sorted(directory.rglob("*.wandb")):
        for record in _records(path.read_bytes()):
            if record.WhichOneof("record_type") == "run":
                runs.add((record.run.run_id, record.run.project))
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or "/".join(item.nested_key): msgspec.json.decode(item.value_json, type=float)
                    for item in record.history.item
                }
                kept = [name for name in row if not name.startswith("_") or name == "_timestamp"]
                rows.append({name: row[name] for name in kept})
    return runs, rows
