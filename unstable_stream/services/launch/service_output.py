"""Format a service's log lines: for people, or one JSON object a line for a log collector."""

import logging
import os
import sys
from types import TracebackType
from typing import Final

from unstable_stream.console import get_logger, stderr_of_the_moment
from unstable_stream.errors import ConfigError

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
