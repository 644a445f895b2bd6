"""Our learner beside those of TRL and UnstableBaselines, through their published packages.

``make bench-peers``, or ``python -m benchmarks.peers --peers trl --shapes tiny 17M --json results.json``.

Both sides train the same random model and the same LoRA adapter (rank 16, all projections) on the same batch
of prompts, completions and advantages, read from the same files; with one thread, the same float type, the
same number of optimizer steps of the whole batch, and no recomputation of activations. Each side is a process
of its own; they take turns, one update each, after one that is not measured. A rate counts completion tokens,
once for each optimizer step. Memory is what the updates take beyond the process with the model loaded, and
that of the whole process with its libraries.

In favour of the peer: its rows of a micro-batch are those with which it was fastest in a try before, while
our side keeps its defaults; what it does before its first forward pass is left out where it is more than
training (see ``trl_learner`` and ``unstable_baselines``); and our side computes entropy, ratios, and the
divergence from the base model once in four updates, as it does in a run.

The gradient of the first update is compared. In float32 both peers must have
ours. UnstableBaselines also trains on the padding of its micro-batches, so its gradient is compared with one
row in each; how far off it is with the measured number of rows is kept beside it.
"""

import argparse
import contextlib
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Comparison, parser, report
from benchmarks.peers.agreement import agreement, read_gradient
from benchmarks.peers.batch import SHAPES, Shape, make_batch
from benchmarks.peers.environment import ensure
from benchmarks.peers.sides import PEERS, Side, side
from benchmarks.peers.table import MEASURES

_TOLERANCE: Final = 1e-3
"""Relative difference of the gradients in float32."""


def fastest(tried: dict[int, float]) -> int:
    """Return the number of rows that took the least time; of equal ones the smaller."""
    return min(tried, key=lambda rows: (tried[rows], rows))


def _take_turns(ours: Side, peer: Side, rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what our updates and the peer's took.

    Who goes first changes, as in `compare`. Both sides stay alive in between: starting takes long.
    """
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            found[which].append((ours, peer)[which].update())
    return found


def comparisons_of(
    name: str, tokens: int, ours: Sequence[Mapping[str, Any]], peer: Sequence[Mapping[str, Any]]
) -> list[Comparison]:
    """Return the rows of a case from what the updates of both sides took.

    Args:
        name: of the case.
        tokens: trained in an update.
        ours: ``seconds``, ``cpu_seconds``, ``peak_mb`` and ``process_mb`` of each update.
        peer: the same.
    """

    def compared(measure: str, unit: str, amount: float, field: str, first: int) -> Comparison:
        own, theirs = (tuple(amount / one[field] for one in updates[first:]) for updates in (ours, peer))
        return Comparison(f"{name}: {measure}", unit, own, theirs)

    # Memory is that of all updates so far, so the last one tells it.
    return [
        compared(MEASURES[0], "trained tokens/CPU s", tokens, "cpu_seconds", 0),
        compared(MEASURES[1], "trained tokens/s", tokens, "seconds", 0),
        compared(MEASURES[2], "updates in 100 GB", 102_400, "peak_mb", -1),
        compared(MEASURES[3], "processes in 100 GB", 102_400, "process_mb", -1),
    ]


def _measure(
    ours: Side, peer: str, shape: Shape, name: str, start: Callable[..., Side], directory: Path, rounds: int
) -> tuple[list[Comparison], dict[str, Any], dict[str, str]]:
    """Return the comparisons, what is kept beside them, and the versions of the packages."""
    sides: dict[int, Side] = {}
    tried: dict[int, float] = {}
    peaks: dict[int, float] = {}
    for rows in shape.rows:
        sides[rows] = start(peer, rows, 1 + rounds, directory / f"{rows}.npz")
        update = sides[rows].update()
        tried[rows], peaks[rows] = update["cpu_seconds"], update["peak_mb"]
        print(
            f"{name}, {rows} rows: {tried[rows]:.2f} CPU s, {peaks[rows]:.0f} MB", file=sys.stderr, flush=True
        )
    rows = fastest(tried)
    own, theirs = _take_turns(ours, sides[rows], rounds)
    gradient = read_gradient(directory / "ours.npz")
    agreements = {number: agreement(gradient, read_gradient(directory / f"{number}.npz")) for number in sides}
    # One row in each micro-batch has no padding.
    agreed = agreements[min(shape.rows)]
    print(f"{name}: {agreements}\n{own}\n{theirs}", file=sys.stderr, flush=True)
    if name.endswith("float32") and not agreed.difference < _TOLERANCE:
        raise SystemExit(f"{name}: the two sides do not have the same gradient: {agreed}")
    kept = {
        "rows": rows,
        "tried_cpu_seconds": tried,
        "tried_peak_mb": peaks,
        "agreement": asdict(agreed),
        "agreement_at_measured_rows": asdict(agreements[rows]),
    }
    tokens = make_batch(shape).trained_tokens
    return comparisons_of(name, tokens, own, theirs), kept, theirs[0]["versions"]


def _start(
    stack: contextlib.ExitStack,
    directory: Path,
    dtype: str,
    peer: str | None,
    rows: int,
    updates: int,
    gradient: Path,
) -> Side:
    """Start a side that lives as long as the stack; see :func:`side`."""
    return stack.enter_context(
        side(peer, directory, rows=rows, updates=updates, dtype=dtype, gradient=gradient)
    )


def main() -> None:
    """Measure the chosen peers on the chosen shapes."""
    from benchmarks.peers.models import write_model

    arguments = parser(__doc__ or "")
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    arguments.set_defaults(rounds=5)
    arguments.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    arguments.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    arguments.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = arguments.parse_args()
    ensure()
    results: list[Comparison] = []
    cases: dict[str, Any] = {}
    versions: dict[str, str] = {}
    for name in options.shapes:
        with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
            directory = Path(work)
            make_batch(SHAPES[name]).save(directory / "batch.npz")
            parameters = write_model(SHAPES[name], directory)
            start = functools.partial(_start, stack, directory, options.dtype)
            ours = start(
                None, SHAPES[name].samples, options.rounds * len(options.peers), directory / "ours.npz"
            )
            for peer in options.peers:
                case = f"{peer}, {name}, {options.dtype}"
                comparisons, kept, packages = _measure(
                    ours, peer, SHAPES[name], case, start, directory, options.rounds
                )
                results += comparisons
                cases[case] = {"parameters": parameters, **kept}
                versions |= packages
                # After each case, so that a run that is cut short keeps what it has.
                report("peers' learners, one thread", results, options.json, versions=versions)
                if options.json is not None:
                    content = json.loads(options.json.read_text(encoding="utf-8")) | {"cases": cases}
                    options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
