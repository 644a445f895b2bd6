"""Check a GPU part by part: ``make gpu-check``, or ``python -m benchmarks.gpu_check --json gpu.json``.

The parts, each for every shape: ``learner`` (trained tokens a second and peak memory, with and without
recomputed activations), ``launches`` (whether the GPU waits for the CPU), ``transformers`` and ``vllm``
(tokens a second beside the bare library's on the same prompts), ``agreement`` (the learner's probability over
the engine's for the tokens of an adapter), ``run`` (a short whole run, audited). What cannot be measured is
skipped and says why. The exit code is 1 if a part failed for another reason than a missing package, GPU or
memory.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

_PARTS: Final = ("learner", "launches", "transformers", "agreement", "vllm", "run")
_SHAPES: Final = ("tiny", "0.6B", "1.7B", "4B", "8B")
_ENDING_S: Final = 20.0
"""Seconds that a part has to end its processes once its time is up. Then it is killed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the parts one after the other, print tables, and return the exit code."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the part is ended too
    with tempfile.TemporaryDirectory(prefix="gpu-check-", dir=options.work) as work:
        check = _Check(options, Path(work))
        machine = check.do("machine", "this machine", "")
        if "failed" not in machine and "skipped" not in machine["rows"][-1]:
            for shape, model in check.models():
                for part in options.parts:
                    check.do(part, shape, model)
    check.show()
    found = [one for result in check.results for one in (result, *result["rows"])]
    return 1 if any("failed" in one for one in found) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--shapes", nargs="+", choices=_SHAPES, default=["0.6B", "1.7B", "4B"], help="random Qwen3 models")
    add("--models", nargs="*", type=Path, default=[], help="model directories, in place of --shapes")
    add("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    add("--lengths", nargs="+", type=int, default=[512, 2048, 8192], help="prompt and completion together")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="CUDA_VISIBLE_DEVICES chooses the GPU")
    add("--rounds", type=int, default=2, help="measured rounds, after one to warm up")
    add("--batch-tokens", type=int, default=32_768, help="tokens of a learner update")
    add(
        "--micro-batch-tokens",
        type=int,
        default=None,
        help="most tokens of a micro-batch, if not as in a run",
    )
    add("--requests", type=int, default=64, help="most requests at once")
    add("--max-tokens", type=int, default=64, help="longest completion")
    add("--minutes", type=float, default=60.0, help="what is not done by then is skipped")
    add("--work", type=Path, default=None, help="directory for random models (8 GB for 4B) and checkpoints")
    add("--json", type=Path, default=None, help="the results, written again after every part")
    options = parser.parse_args(arguments)
    options.lengths.sort()  # the longest last: when memory ends, the shorter ones are done
    return options


class _Check:
    """Does the parts and keeps what they found."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self._options = options
        self._work = work
        self._ends = time.monotonic() + 60 * options.minutes
        self.results: list[dict[str, Any]] = []

    def models(self) -> Iterator[tuple[str, str]]:
        """Yield name and directory of each model; a random one is there until the next is asked for."""
        if self._options.models:
            for model in self._options.models:
                yield model.resolve().name, str(model.resolve())
            return
        for shape in self._options.shapes:
            with tempfile.TemporaryDirectory(dir=self._work) as directory:
                built = self.do("model", shape, directory)
                if "failed" not in built and "skipped" not in built["rows"][-1]:
                    yield shape, directory

    def do(self, part: str, shape: str, model: str) -> dict[str, Any]:
        """Do one part in a process of its own; return and keep its result."""
        print(f"{shape}: {part} …", file=sys.stderr, flush=True)
        began = time.monotonic()
        result: dict[str, Any] = {"part": part, "shape": shape}
        rows = self._work / f"{len(self.results)}-{part}.jsonl"
        log = rows.with_suffix(".log")
        rows.touch()
        code = self._process(part, shape, model, rows, log)
        result["rows"] = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
        if code is None:
            result["rows"].append({"skipped": f"stopped: --minutes {self._options.minutes:g} are over"})
        elif code != 0:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            result["failed"] = said[-1] if said else f"ended with {code} and said nothing"
            result["stderr"] = said[-40:]
        result["seconds"] = round(time.monotonic() - began, 1)
        self.results.append(result)
        self._write()
        return result

    def _process(self, part: str, shape: str, model: str, rows: Path, log: Path) -> int | None:
        """Return the exit code; ``None`` if time was up."""
        left = self._ends - time.monotonic()
        if left <= 0:
            return None
        options = self._options
        job = {
            "part": part,
            "shape": shape,
            "model": model,
            "device": options.device,
            "work": str(self._work),
            "lengths": options.lengths,
            "rounds": options.rounds,
            "batch_tokens": options.batch_tokens,
            "micro_batch_tokens": options.micro_batch_tokens,
            "requests": options.requests,
            "max_tokens": options.max_tokens,
        }
        command = [sys.executable, "-m", "benchmarks.gpu_check.part", json.dumps(job), str(rows)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        if options.device == "cpu":
            # One thread: several would wait for each other at every layer on a machine that has other work.
            environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        with log.open("wb") as file:
            # A group of its own, so that its end ends the processes of its engines too.
            child = subprocess.Popen(
                command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                return child.wait(timeout=left)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end(child)

    def _write(self) -> None:
        if self._options.json is not None:
            content = {"title": "gpu-check", "results": self.results}
            self._options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def show(self) -> None:
        """Print one table a part, and what was skipped or failed and why."""
        console = Console(width=None if Console().is_terminal else 140)
        for part in ("machine", *_PARTS):
            mine = [result for result in self.results if result["part"] == part]
            rows = [(result["shape"], row) for result in mine for row in result["rows"]]
            measured = [(shape, row) for shape, row in rows if "skipped" not in row and "failed" not in row]
            if measured:
                console.print(_table(part, measured))
        for result in self.results:
            where = f"{result['shape']}, {result['part']}"
            for row in result["rows"]:
                for word in ("skipped", "failed"):
                    if word in row:
                        what = ", ".join(f"{k} {v}" for k, v in row.items() if k in _NAMES)
                        console.print(
                            f"{where}{', ' if what else ''}{what}: {word}: {row[word]}", markup=False
                        )
            if "failed" in result:
                console.print(f"{where}: failed: {result['failed']}", markup=False)


_NAMES: Final = ("backend", "engine", "adapters", "recompute", "length", "policy")
"""What a row is about; the rest was measured."""


def _table(part: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    if part == "machine":
        table = Table(title=part, title_justify="left", show_header=False)
        for name, value in rows[0][1].items():
            table.add_row(name, str(value))
        return table
    table = Table(title=part, title_justify="left")
    columns = list(dict.fromkeys(name for _, row in rows for name in row if name != "seconds"))
    for heading in ("shape", *columns):
        table.add_column(heading.replace("_", " "), justify="left" if heading in _NAMES else "right")
    for shape, row in rows:
        table.add_row(shape, *(_text(row.get(name)) for name in columns))
    return table


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the part's processes, and the part itself if it still runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_ENDING_S)
            if number == signal.SIGTERM:
                continue
    child.wait()


if __name__ == "__main__":
    sys.exit(main())
