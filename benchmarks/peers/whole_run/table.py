"""The table of whole runs in ``benchmarks/README.md``, from kept results.

``python -m benchmarks.peers.whole_run --json docs/data/peers/whole-run/simpletak.json`` measures,
``python -m benchmarks.peers.whole_run.table`` writes the table into the page anew.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[3]
RESULTS: Final = _ROOT / "docs" / "data" / "peers" / "whole-run" / "simpletak.json"
PAGE: Final = _ROOT / "benchmarks" / "README.md"
ANCESTOR: Final = "ancestor, vllm"
"""Whose figures the others are divided by."""

_BEGIN: Final = "<!-- whole runs: made by python -m benchmarks.peers.whole_run.table -->\n"
_END: Final = "<!-- whole runs end -->\n"

Run = Mapping[str, Any]
"""What was measured of one run (``Any``: it was read from a file)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table."""

    name: str
    figure: Callable[[Run], float]
    digits: int
    more_is_better: bool
    by_rows: bool
    """Whether there is one for each micro-batch size; else one of all runs."""
    has_ratio: bool = True


ROWS: Final = (
    Row(
        "CPU ms per trained step",
        lambda run: 1000 * sum(run["cpu_s"].values()) / run["steps"],
        2,
        False,
        True,
    ),
    Row("trained steps/s", lambda run: run["steps"] / run["seconds"], 0, True, True),
    Row("steps played for each one trained", lambda run: run["played"], 1, False, True, has_ratio=False),
    Row("first game after, s", lambda run: run["first_game_s"], 0, False, False),
    Row("CPU s until the first game", lambda run: run["first_game_cpu_s"], 0, False, False),
    Row("peak memory, GiB", lambda run: run["memory_mb"] / 1024, 1, False, False),
)


def table(content: Mapping[str, Any]) -> str:
    """Return the Markdown table of results, as ``--json`` wrote them; a ratio above 1 says that we are ahead.

    ``Any``: they were read from a file.
    """
    runs: Mapping[str, Mapping[str, Sequence[Run]]] = content["runs"]
    sizes = sorted({size for by_size in runs.values() for size in by_size}, key=int)
    lines = [f"| | {' | '.join(runs)} |\n", f"|---|{'---|' * len(runs)}\n"]
    for row in ROWS:
        for size in sizes if row.by_rows else [None]:
            figures = {name: _figures(row, by_size, size) for name, by_size in runs.items()}
            cells = [_cell(row, name, figures) for name in runs]
            title = row.name if size is None else f"{row.name}, micro-batch {size}"
            lines.append(f"| {title} | {' | '.join(cells)} |\n")
    return "".join(lines)


def _figures(row: Row, by_size: Mapping[str, Sequence[Run]], size: str | None) -> list[float]:
    """Return the figure of each round, in their order."""
    chosen = by_size.values() if size is None else [by_size.get(size, [])]
    return [row.figure(run) for measured in chosen for run in measured]


def _cell(row: Row, name: str, figures: Mapping[str, Sequence[float]]) -> str:
    own, base = figures[name], figures.get(ANCESTOR, [])
    if not own:
        return ""
    text = _spread(own, row.digits)
    if name == ANCESTOR or not base or not row.has_ratio:
        return text
    rounds = [_ratio(row, mine, theirs) for mine, theirs in zip(own, base, strict=False)]
    middle = _ratio(row, statistics.median(own), statistics.median(base))
    spread = f" ({min(rounds):.2f} to {max(rounds):.2f})" if len(rounds) > 1 else ""
    return f"{text}: **{middle:.2f} x**{spread}"


def _ratio(row: Row, own: float, base: float) -> float:
    return own / base if row.more_is_better else base / own


def _spread(values: Sequence[float], digits: int) -> str:
    middle, low, high = (
        f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def page(text: str) -> str:
    """Return the page's text with the table of the kept results."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    content = json.loads(RESULTS.read_text(encoding="utf-8"))
    return f"{before}{_BEGIN}\n{table(content)}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
