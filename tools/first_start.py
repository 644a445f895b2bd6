"""What a new user does in the first minutes, from a wheel: train the tiny player, ask by SQL, prove the run.

In an empty directory, without a clone, without git or any other program on the path, with a home that is
empty or cannot be written, and behind a proxy that does not answer.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["UNWRITABLE_HOME", "StartError", "install", "interpreter", "run", "start"]

UNWRITABLE_HOME: Final = Path("/proc")
"""A home in which nobody can write, root neither."""

_SMALL: Final = {
    "evaluation.first_last_games": 4,
    "evaluation.max_eval_games_per_ckpt": 4,
    "learner.batch_size": 64,
    "learner.mini_batch_size": 64,
    "collector.num_workers": 8,
    "collector.num_eval_workers": 4,
}
"""The quickstart in two updates of some seconds: whether it starts, not what it learns."""

# Each word of a user's session that would lead back to the clone or to settings of the machine.
_LEFT_OUT: Final = (
    "PYTHON",
    "UNSTABLE_STREAM",
    "VIRTUAL_ENV",
    "XDG_",
    "HF_",
    "RAY_",
    "GIT_",
    "HTTP",
    "NO_PROXY",
)


class StartError(Exception):
    """A command ended with another status than 0: the message has the command and what it printed."""


def run(command: Sequence[str | Path], *, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command; return what it printed.

    Raises:
        StartError: it failed.
    """
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stdout[-4000:]
        raise StartError(
            f"{' '.join(map(str, command))}\nin {cwd} ended with status {done.returncode}:\n{said}"
        )
    return done.stdout


def interpreter(version: str) -> Path | None:
    """Return the Python of a version such as ``3.12``, from the path or pyenv; ``None`` if there is none."""
    places = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places += [each / "bin" for each in sorted(pyenv.glob(f"{version}.*"), reverse=True)]
    for place in places:
        program = place / f"python{version}"
        # A shim of pyenv is there for versions that are not chosen, and then fails.
        if program.is_file() and not subprocess.run([program, "-c", ""], capture_output=True).returncode:
            return program
    return None


def install(uv: Path, python: Path, environment: Path, wheel: Path, *options: str) -> None:
    """Make a new environment and install a wheel into it with what training needs.

    Raises:
        StartError: it could not be installed.
    """
    run([uv, "venv", "--quiet", "--clear", "--python", python, environment], cwd=environment.parent)
    target = environment / "bin" / "python"
    run(
        [uv, "pip", "install", "--quiet", "--python", target, *options, f"{wheel}[train]"],
        cwd=environment.parent,
    )


def start(environment: Path, directory: Path, *, home: Path, backend: str = "ray") -> float:
    """Train and look at the run, as a new user would.

    Args:
        environment: the virtual environment that has the package.
        directory: an empty directory, in which the user is.
        home: of the user.
        backend: ``ray``, or ``inline`` for all in one process.

    Returns:
        the seconds that training took, start included.

    Raises:
        StartError: a command failed.
    """
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(_LEFT_OUT)}
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    variables = {**kept, **proxies, "HOME": str(home), "PATH": str(environment / "bin")}

    def command(*words: str) -> str:
        program = environment / "bin" / "unstable-stream"
        return run([program, *words], cwd=directory, environment=variables)

    settings = [word for key, value in _SMALL.items() for word in ("--set", f"{key}={value}")]
    begin_s = time.monotonic()
    said = command("quickstart", "--quiet", "--updates", "2", "--set", f"backend={backend}", *settings)
    taken_s = time.monotonic() - begin_s
    if "update 2 of 2" not in said:
        raise StartError(f"unstable-stream quickstart did not say that it made its updates:\n{said[-4000:]}")
    for words, shown in (
        (("runs",), "quickstart"),
        (("sql", "SELECT 'updates', count(*) FROM updates", "--csv"), "updates,2"),
        (("verify", "quickstart"), "steps"),
        (("topics", "list"), "learner-updates"),
        (("train", "--help"), "--resume"),
    ):
        if shown not in (said := command(*words)):
            raise StartError(f"unstable-stream {' '.join(words)} did not show {shown!r}:\n{said[-4000:]}")
    return taken_s
