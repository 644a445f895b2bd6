"""The table of a campaign: python -m tests.chaos.table DIRECTORY... prints it for all of them together."""

import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.chaos.runs import LOG_AWAY, RAY_AWAY, RunResult

RESULTS = "runs.jsonl"
"""The file with a line for each run."""


def read_results(directory: Path) -> list[RunResult]:
    """Return what a campaign has done."""
    path = directory / RESULTS
    found = path.read_text().splitlines() if path.exists() else []
    return [RunResult.model_validate_json(line) for line in found]


def write_table(directory: Path) -> None:
    """Write what was done and what came of it, in Markdown."""
    (directory / "table.md").write_text("\n".join(lines(read_results(directory))) + "\n")


def lines(results: Sequence[RunResult]) -> list[str]:
    """Return what was done and what came of it, for each kind of log and backend, in Markdown."""
    kinds = sorted({(result.log, result.backend) for result in results})
    by_kind = {kind: [r for r in results if (r.log, r.backend) == kind] for kind in kinds}
    return [line for kind, found in by_kind.items() for line in _of_one_kind(*kind, found)]


def _of_one_kind(log: str, backend: str, results: Sequence[RunResult]) -> list[str]:
    proven = [result for result in results if not result.failure]
    failed = [result for result in results if result.failure]
    done, ended = _sum(result.done for result in proven), _sum(result.ended for result in proven)
    done_in_vain = _sum(result.done for result in failed).total()
    hours = round(sum(result.seconds for result in proven) / 3600, 2)
    updates = sum(result.updates for result in proven)
    rows = [
        f"### Log `{log}`, backend `{backend}`",
        "",
        f"{done.total()} faults in {len(proven)} runs of {updates} updates, in {hours} hours: "
        f"`audit` and `verify` found nothing. {len(failed)} runs failed, with {done_in_vain} faults.",
        "",
        "| Fault | Times | Next update after: median | 95 % | longest | Run ended and was resumed |",
        "|---|---|---|---|---|---|",
    ]
    for name, times in sorted(done.items()):
        after = sorted(second for result in proven for second in result.recovered_s.get(name, ()))
        rows.append(f"| {name} | {times} | {' | '.join(_times(after))} | {ended[name] or '–'} |")
    if others := [f"{ended[name]} times because {name}" for name in ended if name in (LOG_AWAY, RAY_AWAY)]:
        rows += ["", f"Runs ended, saying so, and were resumed: {', '.join(others)}."]
    if steps := _sum(result.steps for result in proven):
        rows += ["", "| Killed at the commit step | Times |", "|---|---|"]
        rows += [f"| {name} | {count} |" for name, count in sorted(steps.items())]
    asked = ", ".join(f"{n} {name}" for name, n in _sum(r.endpoint for r in proven).most_common())
    return [*rows, "", f"Requests to the failing endpoint, by what they got: {asked}.", ""]


def _times(seconds: Sequence[float]) -> list[str]:
    if not seconds:
        return ["–"] * 3
    most = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
    return [f"{second:.1f} s" for second in (round(statistics.median(seconds), 1), most, seconds[-1])]


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    return sum(counters, Counter())


if __name__ == "__main__":
    print("\n".join(lines([result for name in sys.argv[1:] for result in read_results(Path(name))])))
