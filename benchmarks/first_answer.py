"""The first answer of SQL while a run writes, against the same question where nothing writes.

``python -m benchmarks.first_answer`` starts the quickstart and asks, from the command line and from Python,
how many games it has archived, in turn with the same question to a copy of its archive. The question opens
the archive and closes it again, as each question does: so it waits for the archiver's transaction, and a
command also for Python's start.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import duckdb

from benchmarks.harness import Comparison, compare, duckdb_file, parser, report
from unstable_stream.archive import open_archive, query
from unstable_stream.errors import ArchiveError
from unstable_stream.runs.data_dir import DataDir

_COMMAND: Final = "from unstable_stream.ui.cli import main; main()"
_QUESTION: Final = "SELECT count(*) AS games FROM games WHERE state = 'finished'"
_DEADLINE_S: Final = 300.0
_POLL_S: Final = 0.2
_ENOUGH_GAMES: Final = 500


def _command(data: DataDir) -> float:
    """Ask from the command line; return answers a second."""
    began = time.perf_counter()
    answer = subprocess.run(
        [sys.executable, "-c", _COMMAND, "sql", _QUESTION, "--data", str(data.root), "--json"],
        check=True, capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    elapsed = time.perf_counter() - began
    (row,) = json.loads(answer.stdout)
    if row["games"] < _ENOUGH_GAMES:
        raise SystemExit(f"expected at least {_ENOUGH_GAMES} games, got {row}")
    return 1 / elapsed


def _python(data: DataDir) -> float:
    began = time.perf_counter()
    query(data.archive, _QUESTION)
    return 1 / (time.perf_counter() - began)


def _until_games(data: DataDir, run: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            ((games,),) = query(data.archive, _QUESTION).rows
        except ArchiveError:  # there is none yet
            games = 0
        if games >= _ENOUGH_GAMES:
            return
        if run.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the run did not archive {_ENOUGH_GAMES} games")
        time.sleep(_POLL_S)


def _measure(data: DataDir, rest: DataDir, run: subprocess.Popen[bytes], rounds: int) -> list[Comparison]:
    archive = duckdb_file(data.archive)
    _until_games(data, run)
    rest.root.mkdir()
    with open_archive(archive):  # nobody writes meanwhile
        for file in data.root.glob(f"{archive.name}*"):
            if file.is_file():  # the write-ahead log, too
                shutil.copy2(file, rest.root)
    comparisons = [
        compare(
            f"{place}, while a run writes, against a copy at rest",
            partial(ask, data),
            partial(ask, rest),
            unit="answers/s",
            rounds=rounds,
        )
        for place, ask in (("command line", _command), ("Python", _python))
    ]
    if run.poll() is not None:
        raise SystemExit("the run ended while it was asked")
    return comparisons


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.set_defaults(rounds=20)
    arguments.add_argument("--backend", default="ray", choices=("ray", "inline"))
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-answer-") as directory:
        data, rest = DataDir(Path(directory) / "data"), DataDir(Path(directory) / "rest")
        data.root.mkdir()
        with (data.root / "output.txt").open("wb") as output:
            run = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, "quickstart", "--quiet", "--data", str(data.root),
                 "--set", f"backend={options.backend}", "--set", "learner.iterations=100000"],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                comparisons = _measure(data, rest, run, options.rounds)
            except SystemExit:
                print((data.root / "output.txt").read_text(encoding="utf-8"), file=sys.stderr)
                raise
            finally:
                run.send_signal(signal.SIGINT)
                run.wait()
    report("first answer of SQL", comparisons, options.json, versions={"duckdb": duckdb.__version__})


if __name__ == "__main__":
    main()
