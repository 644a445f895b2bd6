"""A process for the supervisor to look after: ``python pretend_service.py BEHAVIOUR DIRECTORY``."""

import os
import signal
import sys
from pathlib import Path

from unstable_stream.errors import FencedError, LearnerError, OffsetOutOfRangeError
from unstable_stream.services.launch.service_output import write_death

ERRORS = {
    "dies": (1, LearnerError("it went wrong")),
    "log-too-short": (1, OffsetOutOfRangeError.of("steps[0]", 1000, 0, 900)),
    "fenced": (3, FencedError("another learner has taken over")),
}


def main(behaviour: str, directory: Path) -> int:
    """Behave as told; every start adds a line to the file ``starts``."""
    starts = directory / f"{behaviour}.starts"
    with starts.open("a") as file:
        file.write(f"{os.getpid()}\n")
    number = len(starts.read_text().splitlines())
    if behaviour in ERRORS:
        status, error = ERRORS[behaviour]
        write_death(directory / "logs" / f"{behaviour}.log", error)
        return status
    if behaviour == "crashes":
        print("no core", file=sys.stderr, flush=True)
        os.abort()
    if behaviour == "recovers":
        if number > 2:
            return 0
        sys.exit(f"start {'AB'[number - 1]}")
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "drains":
        # Blocked, it waits until it is asked for. With a handler it is lost if it comes before the pause.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if behaviour == "drains-badly":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("the last records are not stored"))
    (directory / f"{behaviour}.ready").touch()
    if behaviour == "drains":
        signal.sigwait({signal.SIGTERM})
        (directory / "drained").touch()
        return 0
    while os.read(0, 1):  # until the parent is gone
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
