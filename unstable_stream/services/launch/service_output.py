"""The traces of a process of a run: its log lines, for people or as JSON, and the error that it died of.

It writes the error to a file beside its output before it ends. A process that could not (killed, crashed, out
of memory, a full disk) leaves its last lines.
"""

import contextlib
import logging
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from unstable_stream.console import get_logger, stderr_of_the_moment
from unstable_stream.errors import ConfigError

_READ_BYTES: Final = 16 * 1024
_LINES: Final = 3
_LONGEST: Final = 600
"""Characters of an error that are shown; the whole is in the process's output."""
_FORMAT_VARIABLE: Final = "UNSTABLE_STREAM_LOG_FORMAT"


def configure_output(service: str, run: str | None = None, *, level: int = logging.INFO) -> None:
    """Send our log lines and the warnings of libraries to stderr, each with time, level, service and run.

    ``level`` is the lowest of our own lines that is shown.

    Raises:
        ConfigError: the environment asks for an unknown format.
    """
    import structlog  # takes a tenth of a second, and commands that only print need none of it

    wanted = os.environ.get(_FORMAT_VARIABLE) or "console"
    if wanted not in ("console", "json"):
        raise ConfigError(f"{_FORMAT_VARIABLE}={wanted!r}: expected console or json")
    stderr = stderr_of_the_moment
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
        if wanted == "json"
        else [structlog.dev.ConsoleRenderer(colors=False)]
    )
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        processors=[*shared, *renderers],
        logger_factory=structlog.PrintLoggerFactory(stderr),
    )
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it repeats our errors in a longer form
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service, **({"run": run} if run else {}))
    if wanted == "json":
        sys.excepthook = _log_uncaught


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    get_logger(__name__).critical(
        "ended by a bug", error=f"{kind.__name__}: {error}", exc_info=(kind, error, trace)
    )


class Death(msgspec.Struct, frozen=True):
    """The error of which a process died."""

    type: str
    message: str = ""
    final: bool = False
    """Whether it must not start again before somebody has mended the cause."""
    pid: int = 0

    def __str__(self) -> str:
        return _shortened(": ".join(filter(None, (self.type, self.message))))


def write_death(output: Path, error: BaseException) -> None:
    """Write the error of which this process dies; ``output`` is the file that it prints to."""
    death = Death(
        type(error).__name__,
        str(error).encode(errors="replace").decode(),  # JSON takes no halves of characters
        final=getattr(error, "final", False) is True,
        pid=os.getpid(),
    )
    with contextlib.suppress(OSError):  # it dies of something else, and its last lines are shown
        _beside(output).parent.mkdir(parents=True, exist_ok=True)
        _beside(output).write_bytes(msgspec.json.encode(death))


class Output:
    """The output of a process that is about to start, at the end of a file."""

    def __init__(self, path: Path) -> None:
        """``path``: the file; the death of the process before is forgotten."""
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0
        with contextlib.suppress(OSError):  # that the directory is none is said by the start
            _beside(path).unlink(missing_ok=True)

    def death(self, pid: int | None = None) -> Death | None:
        """Return the error that the process has written; ``None``: none, or it cannot be read from here.

        ``pid`` passes over what another process has written there, as a launcher of the same run.
        """
        try:
            death = msgspec.json.decode(_beside(self.path).read_bytes(), type=Death)
        except (OSError, msgspec.DecodeError):
            return None
        return death if pid in (None, death.pid) else None

    def last_lines(self) -> str:
        """Return the last lines that it has printed, in one line; empty: none, or they are not here."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._start, end - _READ_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return _shortened(" | ".join([line.strip() for line in lines if line.strip()][-_LINES:]))


def _beside(output: Path) -> Path:
    return output.with_suffix(".error.json")


def _shortened(error: str) -> str:
    """Return an error without line breaks, and not longer than a person reads."""
    line = " ".join(error.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
