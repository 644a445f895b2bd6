"""Where the CPU time of a trained step goes: process by process, and layer by layer.

``python -m benchmarks.step_cost`` plays the quickstart, or the run of ``--config FILE``, twice, on Ray and
with all parts in this process. It looks at what was spent between the first and the last update, divided by
the steps trained in between.

- *Processes*: of each process of the run on Ray, what the system counted for it. Those that ended meanwhile
  are missing.
- *Layers*: in one process, a thread looks hundreds of times a second at what each Python thread has spent
  since and at the line it is at. The time goes to the package of ``unstable_stream`` whose code is innermost:
  what torch does for the learner is the learner's. ``torch's own threads`` is the rest of the process, which
  belongs to no Python thread.

``--model DIR`` plays the quickstart with another model than the tiny player. Shares hold on a busy machine
too; times do less.
"""

import asyncio
import json
import os
import secrets
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.table import Table

import unstable_stream
from benchmarks.between_updates import BetweenUpdates
from benchmarks.harness import machine, parser
from unstable_stream.api.build import build
from unstable_stream.api.quickstart import quickstart
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.launcher import Backend, launch

MARK: Final = "UNSTABLE_STREAM_STEP_COST"
"""Environment variable by which the processes of the run are known: Ray's are nobody's children."""
_PACKAGE: Final = f"{Path(unstable_stream.__file__).parent}{os.sep}"
_SERVICE: Final = "-m unstable_stream.services.launch.service "
_EVERY_S: Final = 0.003
_SHARED: Final = ("log", "inference", "workers")
"""Packages whose modules are layers of their own."""


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds by process or layer, and the steps trained meanwhile."""

    seconds: dict[str, float]
    steps: int


async def play(
    model: str,
    updates: int,
    overrides: tuple[str, ...],
    backend: Backend,
    look: Callable[[], dict[str, float]],
    file: Path | None = None,
) -> Spent:
    """Play the quickstart, or the run of a file; return what ``look`` counted between the first and the last
    update.
    """
    counted = BetweenUpdates(1, updates, look)
    with tempfile.TemporaryDirectory() as directory:
        wanted = (f"learner.iterations={updates}", "evaluation.first_last_games=2", *overrides)
        if file is None:
            config = quickstart(model, data=Path(directory), overrides=wanted).config
        else:
            config = build(config=file, data=Path(directory), overrides=wanted).config
        await launch(config, DataDir(Path(directory)), backend=backend, watch=counted.watch)
    first, last = counted.looks
    spent = {name: seconds - first.get(name, 0.0) for name, seconds in last.items()}
    return Spent({name: seconds for name, seconds in spent.items() if seconds > 0.0}, counted.steps)


# -- processes ------------------------------------------------------------------------------------


def by_process(mark: str) -> dict[str, float]:
    """Return the CPU seconds of the processes that carry the mark, by what they are."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            if f"{MARK}={mark}".encode() not in (place / "environ").read_bytes().split(b"\0"):
                continue
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            # After the name in brackets, which may hold blanks: user and system time are the 12th and 13th.
            ticks = (place / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # it has ended
        seconds[process_name(command, int(place.name))] += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return dict(seconds)


def process_name(command: str, pid: int) -> str:
    """Return what a process of a run is, by its command line."""
    if pid == os.getpid() or " quickstart " in command:
        return "launcher"
    if command.startswith("ray::"):
        return command.removeprefix("ray::").split(".")[0].split(" ")[0]
    if command.startswith("VLLM::"):
        return "vLLM"
    if _SERVICE in command:
        return command.partition(_SERVICE)[2].split()[0]
    if " kafka.Kafka " in f"{command} ":
        return "brokers"
    for name in ("gcs_server", "raylet", "dashboard", "log_monitor", "resource_tracker"):
        if name in command:
            return f"Ray: {name}"
    return "Ray: idle workers" if "default_worker" in command else "others"


# -- layers ---------------------------------------------------------------------------------------


class Layers:
    """Looks at every Python thread again and again, and gives what it has spent to the layer it is in."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._thread_s: dict[int, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="step-cost", daemon=True)
        self._began = time.process_time()

    def __enter__(self) -> "Layers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def look(self) -> dict[str, float]:
        """Return the CPU seconds so far, by layer."""
        found = dict(self._seconds)
        found["torch's own threads"] = time.process_time() - self._began - sum(found.values())
        return found

    def _watch(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            frames = sys._current_frames()
            for thread in threading.enumerate():
                frame = frames.get(thread.ident or 0)
                if frame is None or thread.ident is None:
                    continue
                try:
                    spent = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
                except OSError:
                    continue  # it has ended
                before = self._thread_s.get(thread.ident, 0.0)
                self._thread_s[thread.ident] = spent
                own = thread is threading.current_thread()
                # A number that a new thread was given begins anew.
                self._seconds["this benchmark" if own else layer_of(frame)] += max(0.0, spent - before)


def layer_of(frame: FrameType | None) -> str:
    """Return the package of ``unstable_stream`` whose code is innermost; of some packages also the module."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_PACKAGE):
            parts = path.removeprefix(_PACKAGE).removesuffix(".py").split(os.sep)
            return "/".join(parts[: 2 if parts[0] in _SHARED else 1])
        frame = frame.f_back
    return "event loop, threads, others"


def _table(title: str, spent: Spent) -> Table:
    whole = sum(spent.seconds.values())
    table = Table(title=title, title_justify="left")
    table.add_column("where", min_width=28)
    table.add_column("CPU ms a trained step", justify="right")
    table.add_column("share", justify="right")
    for name, seconds in sorted(spent.seconds.items(), key=lambda each: -each[1]):
        if seconds >= 0.005 * whole:
            table.add_row(name, f"{seconds / spent.steps * 1000:.3f}", f"{seconds / whole:.1%}")
    table.add_row("together", f"{whole / spent.steps * 1000:.3f}", "")
    return table


def main() -> None:
    """Play both ways, and print where the time went."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--model", default="tiny-player", help="plays the quickstart")
    arguments.add_argument("--config", type=Path, default=None, help="another run than the quickstart")
    arguments.add_argument("--updates", type=int, default=8, help="learner updates")
    arguments.add_argument("--set", action="append", default=[], help="key=value of the configuration")
    arguments.add_argument("--only", choices=("processes", "layers"), default=None)
    options = arguments.parse_args()
    found: dict[str, Spent] = {}

    def played(backend: Backend, look: Callable[[], dict[str, float]]) -> Coroutine[Any, Any, Spent]:
        return play(options.model, options.updates, tuple(options.set), backend, look, options.config)

    if options.only != "processes":
        with Layers() as layers:
            found["layers"] = asyncio.run(played("inline", layers.look))
    if options.only != "layers":
        mark = os.environ[MARK] = secrets.token_hex(8)
        # What a process is started with stands in /proc for good: this one is counted by its number.
        found["processes"] = asyncio.run(
            played("ray", lambda: by_process(mark) | {"launcher": time.process_time()})
        )
    played_name = (options.config or Path(options.model)).stem
    console = Console(width=None if Console().is_terminal else 120)
    for title, spent in found.items():
        console.print(_table(f"{played_name}, {title}", spent))
    if options.json is not None:
        content = {
            "title": f"cost of a trained step, {played_name}",
            "machine": machine(),
            "ms_per_step": {
                title: {name: seconds / spent.steps * 1000 for name, seconds in spent.seconds.items()}
                for title, spent in found.items()
            },
        }
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
