"""The table of a campaign: python -m tests.chaos.table DIRECTORY... prints it for all of them together."""

import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.chaos.campaign import read_results
from tests.chaos.runs import RunResult

__all__ = ["lines"]


def lines(results: Sequence[RunResult]) -> list[str]:
    """Return what was done and what came of it, in Markdown."""
    found: list[str] = []
    for log, backend in sorted({(result.log, result.backend) for result in results}):
        found += _of_one_kind(log, backend, [r for r in results if (r.log, r.backend) == (log, backend)])
    return found


def _of_one_kind(log: str, backend: str, results: Sequence[RunResult]) -> list[str]:
    proven = [result for result in results if not result.failure]
    done = _sum(result.done for result in proven)
    ended = _sum(result.ended for result in proven)
    rows = [
        f"### Log `{log}`, backend `{backend}`",
        "",
        f"{done.total()} faults in {len(proven)} runs of {sum(result.updates for result in proven)} updates, "
        f"in {sum(result.seconds for result in proven) / 3600:.1f} hours. {_proofs(results)}",
        "",
        "| Fault | Times | Next update after: median, 95 %, longest | Run ended and was resumed |",
        "|---|---|---|---|",
    ]
    for name in sorted(done):
        times = sorted(second for result in proven for second in result.recovered_s.get(name, ()))
        told = "–"
        if times:
            most = times[min(len(times) - 1, int(0.95 * len(times)))]
            told = f"{statistics.median(times):.1f} s, {most:.0f} s, {times[-1]:.0f} s"
        rows.append(f"| {name} | {done[name]} | {told} | {ended[name] or '–'} |")
    steps = _sum(result.steps for result in proven)
    if steps:
        rows += ["", "| Killed at the commit step | Times |", "|---|---|"]
        rows += [f"| {name} | {count} |" for name, count in sorted(steps.items())]
    asked = _sum(result.endpoint for result in proven)
    answers = ", ".join(f"{count} {name}" for name, count in asked.most_common())
    return [*rows, "", f"Requests to the failing endpoint, by what they got: {answers}.", ""]


def _proofs(results: Sequence[RunResult]) -> str:
    failed = [result for result in results if result.failure]
    if not failed:
        return "`audit` and `verify` found nothing in any of them."
    faults = sum(result.done.total() for result in failed)
    return f"`audit` and `verify` found nothing in them. {len(failed)} runs failed, with {faults} faults."


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    return sum(counters, Counter())


if __name__ == "__main__":
    print("\n".join(lines([result for name in sys.argv[1:] for result in read_results(Path(name))])))
