"""Send statements to the SQL doors in this process, and print after each how it ended: JSON lines.

The first line has the archive, a directory and the door; each other one a statement.
"""

import contextlib
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

from unstable_stream.archive.read import Cancel, held, query_arrow, stream, write_parquet

rows_of_python = pa.table({"a": [1]})


def ask(archive: Path, place: Path, door: str, sql: str) -> str:
    """Return the first column's values, or the error as ``class: message``."""
    of_the_frame = rows_of_python
    cancel = Cancel()
    if door == "cancelled":
        threading.Timer(0.3, cancel).start()
    try:
        if door == "arrow":
            return str(query_arrow(archive, sql).num_rows)
        if door == "run":
            return str(query_arrow(archive, sql, run_id="run-a").num_rows)
        if door == "parquet":
            write_parquet(archive, sql, place / "rows.parquet", most_bytes=10**9)
            return "written"
        with stream(archive, sql, cancel=cancel) as result:
            return str(len(list(result.rows)))
    except BaseException as error:  # noqa: BLE001 - the test sees it, whatever it is
        return f"{type(error).__name__}: {error}"
    finally:
        del of_the_frame
        (place / "rows.parquet").unlink(missing_ok=True)


def main() -> None:
    """Ask everything that comes on stdin."""
    lines: Any = map(json.loads, sys.stdin)
    archive, place, door = next(lines)
    with held(Path(archive)) if door == "stream" else contextlib.nullcontext():
        for sql in lines:
            print(json.dumps(ask(Path(archive), Path(place), door, sql)), flush=True)


if __name__ == "__main__":
    main()
