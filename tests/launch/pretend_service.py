"""A process for the supervisor to look after: ``python pretend_service.py BEHAVIOUR DIRECTORY``."""

import os
import signal
import sys
from pathlib import Path


def main(behaviour: str, directory: Path) -> int:
    """Behave as told; every start adds a line to the file ``starts``."""
    starts = directory / f"{behaviour}.starts"
    with starts.open("a") as file:
        file.write(f"{os.getpid()}\n")
    number = len(starts.read_text().splitlines())
    if behaviour == "done":
        return 0
    if behaviour == "dies":
        print(f"LearnerError: {'once ' * number}it went wrong", file=sys.stderr)
        return 5
    if behaviour == "dies-alike":
        print(f"LearnerError: process {os.getpid()} went wrong", file=sys.stderr)
        return 1
    if behaviour == "fenced":
        print("FencedError: another learner has taken over", file=sys.stderr)
        return 3
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "dies-in-json":
        print('{"event": "service failed", "error": "LearnerError: no", "level": "error"}', file=sys.stderr)
        return 1
    if behaviour == "recovers":
        if number > 2:
            return 0
        raise OSError(f"start {'AB'[number - 1]}")
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "drains":
        # Blocked, it waits until it is asked for. With a handler it is lost if it comes before the pause.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if behaviour == "drains-badly":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ArchiveError: the last records are not stored"))
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
