"""Orders to the processes of a run, by files in a directory; see ``inside/sitecustomize.py``."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

CONTROL_ENV = "CHAOS_CONTROL"
"""The environment variable with the directory of the orders."""
_INSIDE = Path(__file__).resolve().parent / "inside"
_CRASH_S = 60.0


class Orders:
    """Gives orders to every process started from here on with this process's environment."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        os.environ[CONTROL_ENV] = str(directory)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            (str(_INSIDE), *filter(None, (os.environ.get("PYTHONPATH"),)))
        )

    async def crash(self, words: str, number: int, is_over: Callable[[], bool]) -> str:
        """Have the process with the words in its command line die at its n-th step; return the step's name.

        Empty if it did not come to so many steps in a minute, or before all was over.
        """
        crashed = self._directory / "crashed"
        self._write("crash", f"{words} {number}")
        deadline = time.monotonic() + _CRASH_S
        while not crashed.exists():
            if time.monotonic() > deadline or is_over():
                (self._directory / "crash").unlink(missing_ok=True)
                if not crashed.exists():
                    return ""
            await asyncio.sleep(0.02)
        step = crashed.read_text()
        for path in (crashed, *self._directory.glob(".crashed-*")):
            path.unlink()
        return step

    def hang(self) -> None:
        """Have the next step of an environment never return."""
        self._write("hang", "now")

    def misbehave(self, what: str, kind: str, seconds: float) -> None:
        """Have the environments or the engines misbehave in a way for some seconds from now."""
        self._write(what, f"{kind} {time.time() + seconds}")

    def _write(self, name: str, text: str) -> None:
        staging = self._directory / f".{name}"
        staging.write_text(text)
        staging.rename(self._directory / name)
