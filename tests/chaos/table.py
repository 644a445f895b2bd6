"""The table of a campaign: python -m tests.chaos.table DIRECTORY... prints it for all of them together."""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.runs import LOG_AWAY, RAY_AWAY, RunResult

RESULTS = "runs.jsonl"
"""The file with a line for each run."""


def read_results(directory: Path) -> list[RunResult]:
    """Return what a campaign has done."""
    path = directory / RESULTS
    found = path.read_text().splitlines() if path.exists() else []
    return [RunResult.model_validate_json(line) for line in found]


def write_tables(directory: Path) -> None:
    """Write what was done and what came of it, as JSON and in Markdown."""
    results = read_results(directory)
    (directory / "table.json").write_text(json.dumps(summary(results), indent=2) + "\n")
    (directory / "table.md").write_text("\n".join(lines(results)) + "\n")


def summary(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return what was done and what came of it, for each kind of log and backend."""
    kinds = sorted({(result.log, result.backend) for result in results})
    return [_of_one_kind(*kind, [r for r in results if (r.log, r.backend) == kind]) for kind in kinds]


def _of_one_kind(log: str, backend: str, results: Sequence[RunResult]) -> dict[str, Any]:
    proven = [result for result in results if not result.failure]
    failed = [result for result in results if result.failure]
    ended = _sum(result.ended for result in proven)
    return {
        "log": log,
        "backend": backend,
        "faults": {
            name: {
                "times": times,
                "next_update_s": _times(s for result in proven for s in result.recovered_s.get(name, ())),
                "run_ended_and_was_resumed": ended[name],
            }
            for name, times in sorted(_sum(result.done for result in proven).items())
        },
        "ended_otherwise": {name: n for name, n in ended.items() if name in (LOG_AWAY, RAY_AWAY)},
        "killed_at_commit_step": dict(sorted(_sum(result.steps for result in proven).items())),
        "requests_to_the_failing_endpoint": dict(_sum(r.endpoint for r in proven).most_common()),
        "runs": len(proven),
        "updates": sum(result.updates for result in proven),
        "hours": round(sum(result.seconds for result in proven) / 3600, 2),
        "failed": {"runs": len(failed), "faults": _sum(result.done for result in failed).total()},
    }


def _times(seconds: Iterable[float]) -> dict[str, float]:
    found = sorted(seconds)
    if not found:
        return {}
    most = found[min(len(found) - 1, int(0.95 * len(found)))]
    return {"median": round(statistics.median(found), 1), "95 %": most, "longest": found[-1]}


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    return sum(counters, Counter())


def lines(results: Sequence[RunResult]) -> list[str]:
    """Return the summary in Markdown."""
    return [line for kind in summary(results) for line in _lines(kind)]


def _lines(kind: dict[str, Any]) -> list[str]:
    total = sum(fault["times"] for fault in kind["faults"].values())
    failed = kind["failed"]
    rows = [
        f"### Log `{kind['log']}`, backend `{kind['backend']}`",
        "",
        f"{total} faults in {kind['runs']} runs of {kind['updates']} updates, in {kind['hours']} hours: "
        f"`audit` and `verify` found nothing. {failed['runs']} runs failed, with {failed['faults']} faults.",
        "",
        "| Fault | Times | Next update after: median | 95 % | longest | Run ended and was resumed |",
        "|---|---|---|---|---|---|",
    ]
    for name, fault in kind["faults"].items():
        times = [f"{second:.1f} s" for second in fault["next_update_s"].values()] or ["–"] * 3
        ended = fault["run_ended_and_was_resumed"] or "–"
        rows.append(f"| {name} | {fault['times']} | {' | '.join(times)} | {ended} |")
    others = {name: n for name, n in kind["ended_otherwise"].items() if n}
    if others:
        told = ", ".join(f"{n} times because {name}" for name, n in others.items())
        rows += ["", f"Runs ended, saying so, and were resumed: {told}."]
    if kind["killed_at_commit_step"]:
        rows += ["", "| Killed at the commit step | Times |", "|---|---|"]
        rows += [f"| {name} | {count} |" for name, count in kind["killed_at_commit_step"].items()]
    asked = ", ".join(f"{n} {name}" for name, n in kind["requests_to_the_failing_endpoint"].items())
    return [*rows, "", f"Requests to the failing endpoint, by what they got: {asked}.", ""]


if __name__ == "__main__":
    print("\n".join(lines([result for name in sys.argv[1:] for result in read_results(Path(name))])))
