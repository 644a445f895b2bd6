"""What came of faults, as lines of JSON, and the table that the documentation shows.

``python -m tools.lab.results FILE`` prints the table of a file with such lines.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class FaultResult:
    """One fault and what came of it; times in seconds."""

    fault: str
    what: str
    lasted_s: float = 0.0
    """0.0: what was lost was lost for ever."""
    updates_meanwhile: int = 0
    """Updates that were made while the fault lasted."""
    next_update_s: float | None = None
    """From the end of the fault to the next update; ``None``: there was none."""
    longest_pause_s: float = 0.0
    """The longest time between two updates, from the last one before the fault to the second after it."""
    ended: list[str] = field(default_factory=list)
    """What the launcher said each time that the run ended; it was resumed with the command that it gave."""
    note: str = ""
    audit: str = ""
    """The last word of the audit, when the run had ended: ``balanced``."""
    verify: str = ""
    """The last word of the verification: ``verified``."""
    archive: str = ""
    """``archive whole``, or ``shared archive whole``: it has the records of the log. Empty: not looked at."""
    trained_twice: int = 0
    """Steps of the run that more than one recorded update was made of."""
    failure: str = ""
    """Why the run did not go on, or what a proof found."""

    def line(self) -> str:
        """Return the result as a line of JSON."""
        return json.dumps(dataclasses.asdict(self))


def read_results(path: Path) -> list[FaultResult]:
    """Read lines that :meth:`FaultResult.line` made."""
    return [FaultResult(**json.loads(line)) for line in path.read_text().splitlines()]


def table(results: Sequence[FaultResult]) -> list[str]:
    """Return a table in Markdown."""
    lines = [
        "| Fault | What is done | Updates meanwhile | Next update after its end | Longest time without one "
        "| Run | Proofs |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        after = "none" if result.next_update_s is None else f"{result.next_update_s:.0f} s"
        ended = f"ended {len(result.ended)} ×, resumed" if result.ended else "went on"
        proofs = ", ".join(filter(None, (result.audit, result.verify, result.archive))) or "–"
        if result.failure:
            proofs = f"**{result.failure.splitlines()[0]}**"
        lines.append(
            f"| `{result.fault}` | {result.what}{f' ({result.note})' if result.note else ''} "
            f"| {result.updates_meanwhile if result.lasted_s else '–'} | {after} "
            f"| {result.longest_pause_s:.0f} s | {ended} | {proofs} |"
        )
    return lines


if __name__ == "__main__":
    print("\n".join(line for name in sys.argv[1:] for line in table(read_results(Path(name)))))
