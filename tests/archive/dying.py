"""What is killed in the midst of writing, merging or dropping: at a step that it has passed so many times."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.archive.history import made_up_run, stored
from unstable_stream.archive import ArchiveWriter, drop_run
from unstable_stream.archive.file_store import FileStore
from unstable_stream.archive.shared.store import compact
from unstable_stream.archive.shared.table import SharedTable
from unstable_stream.log.stores.archive_address import ArchiveAddress


def _killer(times: int) -> Callable[[], None]:
    left = times

    def pass_or_die() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_or_die


def _die(step: str, times: int) -> None:
    """At ``before`` or ``after`` a method of a shared table. ``Any``: any method."""
    when, name = step.split()
    whole, pass_or_die = getattr(SharedTable, name), _killer(times)

    def call(*arguments: Any, **options: Any) -> Any:
        if when == "before":
            pass_or_die()
        result = whole(*arguments, **options)
        if when == "after":
            pass_or_die()
        return result

    setattr(SharedTable, name, call)


def write(address: str, step: str, times: int) -> None:
    """Archive :func:`made_up_run` in a shared archive."""
    _die(step, times)
    _write(address, 60)


def merge(address: str, step: str, times: int) -> None:
    _die(step, times)
    compact(SharedTable(address), everything=True)


def drop(address: str, step: str, times: int) -> None:
    """Drop ``run-a``."""
    _die(step, times)
    drop_run(address, "run-a")


def write_file(path: Path, statements: int) -> None:
    """Archive :func:`made_up_run` in a file; die before the statement after so many."""
    insert, pass_or_die = FileStore._insert, _killer(statements)

    class Dying:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def execute(self, *arguments: Any) -> Any:
            pass_or_die()
            return self._connection.execute(*arguments)

    FileStore._insert = lambda self, connection, *given: insert(self, Dying(connection), *given)  # type: ignore[method-assign,arg-type]
    _write(path, 100)


def _write(address: ArchiveAddress, size: int) -> None:
    records = stored(made_up_run())
    with ArchiveWriter(address) as writer:
        for start in range(0, len(records), size):
            writer.write(records[start : start + size])
