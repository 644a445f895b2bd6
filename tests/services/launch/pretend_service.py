"""A process for the supervisor to look after: ``python pretend_service.py BEHAVIOUR DIRECTORY``."""

import os
import signal
import sys
from pathlib import Path

from unstable_stream.errors import FencedError, LearnerError, OffsetOutOfRangeError, StoreUnavailableError
from unstable_stream.services.launch.death import write_death


def main(behaviour: str, directory: Path) -> int:
    """Behave as told; every start adds a line to the file ``starts``."""
    starts = directory / f"{behaviour}.starts"
    with starts.open("a") as file:
        file.write(f"{os.getpid()}\n")
    number = len(starts.read_text().splitlines())
    if behaviour == "done":
        return 0
    output = directory / "logs" / f"{behaviour}.log"
    if behaviour == "dies":
        write_death(output, LearnerError(f"{'once ' * number}it went wrong"))
        return 5
    if behaviour == "dies-alike":
        write_death(output, LearnerError("it went wrong"))
        return 1
    if behaviour == "dies-elsewhere":
        write_death(output, LearnerError(f"cannot allocate {number} GB at 0x{number:x}f"))
        return 1
    if behaviour == "log-too-short":
        write_death(output, OffsetOutOfRangeError.of("steps[0]", 1000, 0, 900 + number))
        return 1
    if behaviour == "store-away":
        write_death(output, StoreUnavailableError("s3://runs is away"))
        return 1
    if behaviour == "fenced":
        write_death(output, FencedError("another learner has taken over"))
        return 3
    if behaviour == "crashes":
        print("no core", file=sys.stderr, flush=True)
        os.abort()
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
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
