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
from typing import Final

import ray

from unstable_stream.errors import ServiceError, UnstableStreamError
from unstable_stream.services.launch.service_output import Output, configure_output, write_death
from unstable_stream.services.workers.loading import loading

_NOT_STARTED: Final = "it could not start: "
_ENDED_SILENTLY: Final = "its process ended without a word: killed, crashed, or out of memory"


class PartDiedError(ServiceError):
    """An engine or a rollout worker cannot go on; it is started again with its collector."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(part, reason)  # so that it can be pickled
        self.part = part
        """``engine-0``, ``rollout-1``."""
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.part.replace('-', ' ')} died: {self.reason}"


def _write_output_to(path: Path, run_id: str) -> None:
    """Send what this process and its children print to the end of a file.

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


@contextmanager
def starting(output: Path, run_id: str) -> Iterator[None]:
    """Start an actor, heavy imports included: its output goes to a file, and so does an error it dies of."""
    _write_output_to(output, run_id)
    try:
        with printing_errors(), loading():
            yield
    except Exception as error:
        write_death(output, error)
        raise


def reason_of(error: BaseException) -> str:
    """Return in one line what a call of an actor failed of, without Ray's words and traceback."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    if isinstance(cause, ray.exceptions.RayActorError) and cause.actor_init_failed:
        return f"{_NOT_STARTED}{str(cause).splitlines()[-1].strip()}"
    if isinstance(cause, ray.exceptions.RayError):
        return _ENDED_SILENTLY
    return f"{type(cause).__name__}: {cause}"


def explain(error: PartDiedError, outputs: Mapping[str, Output]) -> ServiceError:
    """Return the error with the reason that the part left, and with the file of all that it printed."""
    output = outputs.get(error.part)
    if output is None:
        return ServiceError(str(error))
    said = error.reason
    if said == _ENDED_SILENTLY and (lines := output.last_lines()):
        said = f"{said}; it printed last: {lines}"
    elif said.startswith(_NOT_STARTED):  # else what is written there is another one's
        said = str(output.death() or said)
    return ServiceError(f"{PartDiedError(error.part, said)} (all of it: {output.path})")
