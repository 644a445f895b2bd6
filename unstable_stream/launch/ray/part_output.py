"""The output of Ray actors in the run's logs, and the reason of an actor's death from there.

Ray keeps what its workers print in a directory of its own on each machine, which nobody finds and which goes
with the machine.
"""

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ray

from unstable_stream.errors import ServiceError, UnstableStreamError
from unstable_stream.launch.last_error import ENDED_SILENTLY, Output, last_error
from unstable_stream.launch.service_output import configure_output

__all__ = ["PartDiedError", "PartLostError", "explain", "printing_errors", "reason_of", "write_output_to"]


class PartDiedError(ServiceError):
    """An engine or a rollout worker cannot go on; it is started again with its collector."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(part, reason)  # so that it can be pickled
        self.part = part
        """``engine-0``, ``rollout-1``."""
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.part.replace('-', ' ')} died: {self.reason}"


def write_output_to(path: Path, run_id: str) -> None:
    """Send what this process and its children print to the end of a file; call it before heavy imports.

    On a machine of a cluster that cannot write the data directory, it stays in Ray's own logs.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Appended to: the process that hosts the learner's actor writes to the same file.
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        print(f"{path} cannot be written ({error.strerror}): what this prints stays here", file=sys.stderr)
    else:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(target)
    configure_output(path.stem, run_id)


class PartLostError(PartDiedError):
    """Its process or its machine is gone."""


@contextmanager
def printing_errors() -> Iterator[None]:
    """Print errors where the actor prints, a bug with its traceback; Ray only hands them to the caller."""
    try:
        yield
    except UnstableStreamError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise
    except Exception:
        traceback.print_exc()
        raise


def reason_of(error: BaseException) -> str:
    """Return in one line what a call of an actor failed of, without Ray's words and traceback."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    if isinstance(cause, ray.exceptions.RayError):
        return last_error(str(cause)) or ENDED_SILENTLY
    return f"{type(cause).__name__}: {cause}"


def explain(error: PartDiedError, outputs: Mapping[str, Output]) -> ServiceError:
    """Return the error with the reason that the part printed, and with the file that has all of it."""
    output = outputs.get(error.part)
    if output is None:
        return error
    # Its own last words come last: an engine's error is better than what its library said before.
    said = last_error(f"{output.text()}\n{error.reason}") or error.reason
    return ServiceError(f"{PartDiedError(error.part, said)} (all of it: {output.path})")
