"""Processes that kill themselves at a step: each is a fork of one that has imported what they need."""

import multiprocessing
import signal
from collections.abc import Callable

_PRELOADED = [
    *("aiokafka", "deltalake", "duckdb", "pyarrow.parquet"),
    *("tests.archive.dying", "tests.services.streams.doomed_host", "tests.services.streams.plugin_bench"),
]
_context = multiprocessing.get_context("forkserver")


def assert_killed(work: Callable[..., None], *arguments: object) -> None:
    """Run a function in a process of its own, which must end by ``kill -9``."""
    _context.set_forkserver_preload(_PRELOADED)  # heeded when the first is forked
    process = _context.Process(target=work, args=arguments)
    process.start()
    process.join(240)
    assert process.exitcode == -signal.SIGKILL
