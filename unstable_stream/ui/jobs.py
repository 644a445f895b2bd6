"""Work that takes longer than a page: it goes on in a thread, and a page shows how far it is."""

import contextvars
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from unstable_stream.errors import ConfigError, UnstableStreamError
from unstable_stream.log_lines import get_logger

__all__ = ["Job", "Jobs"]

_AT_ONCE: Final = 2
_KEPT: Final = 50
_log = get_logger(__name__)


@dataclass(eq=False)
class Job:
    """One piece of work."""

    title: str
    kind: str
    """Names the part of the page that shows its result."""
    run_id: str = ""
    """The run that it is about; empty for none."""
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    result: Any = None
    """``Any``: whatever the work returns."""
    error: str | None = None
    done_of: tuple[int, int] | None = None
    """The number done and the number in all, once they are known."""
    done: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=time.monotonic)
    took_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The time that it has taken so far, or took."""
        return self.took_s if self.done.is_set() else time.monotonic() - self.begun


class Jobs:
    """The work of one site."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, kind: str, title: str, work: Callable[[Job], Any], *, run_id: str = "") -> Job:
        """Begin work in a thread; it may tell its job how far it is.

        Raises:
            ConfigError: as much as may go on at once does.
        """
        job = Job(title, kind, run_id)
        with self._lock:
            if sum(not each.done.is_set() for each in self._jobs.values()) >= _AT_ONCE:
                raise ConfigError("two such computations are under way already: wait for one of them")
            self._jobs[job.id] = job
            while len(self._jobs) > _KEPT:
                self._jobs.popitem(last=False)
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(_do, job, work), daemon=True).start()
        return job

    def find(self, id_: str) -> Job | None:
        """Return a job, if it is not forgotten."""
        return self._jobs.get(id_)


def _do(job: Job, work: Callable[[Job], Any]) -> None:
    try:
        job.result = work(job)
    except UnstableStreamError as error:
        job.error = str(error)
    except Exception as error:
        job.error = f"{type(error).__name__}: {error}"
        _log.exception("what-if failed")
        raise
    finally:
        job.took_s = time.monotonic() - job.begun
        job.done.set()
