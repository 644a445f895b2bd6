"""The table of measured ratios in ``benchmarks/README.md``, from kept results.

``python -m benchmarks.peers --shapes tiny --json docs/data/peers/tiny.json`` measures,
``python -m benchmarks.peers.table`` writes the table into the page anew.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = _ROOT / "docs" / "data" / "peers"
"""A file for each run; the table has the rows of all, in the order of the models' sizes."""
PAGE: Final = _ROOT / "benchmarks" / "README.md"
MEASURES: Final = ("CPU time", "wall time", "memory", "process memory")
"""What is compared; a row of the results is named ``peer, shape, dtype: measure``."""

_BEGIN: Final = "<!-- peers: made by python -m benchmarks.peers.table -->\n"
_END: Final = "<!-- peers end -->\n"
_HEAD: Final = (
    "| Peer | Model | Tokens per CPU second | Tokens per second | Memory of the update | "
    "Memory of the process | Its rows | Gradient |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def table(contents: Iterable[Mapping[str, Any]]) -> str:
    """Return the Markdown table of results, as ``--json`` wrote them; above 1 we are ahead.

    ``Any``: they were read from files.
    """
    lines: list[tuple[str, int, str]] = []
    for content in contents:
        ratios = {row["name"]: _ratio(row) for row in content["results"]}
        for name, case in content["cases"].items():
            cells = [ratios[f"{name}: {measure}"] for measure in MEASURES]
            peer, shape, _ = name.split(", ")
            measured = case["agreement_at_measured_rows"]["difference"]
            gradient = f"{case['agreement']['difference']:.0e}, {measured:.0e}"
            line = f"| {peer} {content['machine'][peer]} | {shape} | {' | '.join(cells)} | {case['rows']} "
            lines.append((peer, case["parameters"], f"{line}| {gradient} |\n"))
    return _HEAD + "".join(line for _, _, line in sorted(lines))


def _ratio(row: Mapping[str, Any]) -> str:
    ours: Sequence[float] = row["ours"]
    rounds = [own / base for own, base in zip(ours, row["baseline"], strict=True)]
    spread = f" ({min(rounds):.2f} to {max(rounds):.2f})" if len(rounds) > 1 else ""
    return f"{median(ours) / median(row['baseline']):.2f}{spread}"


def page(text: str) -> str:
    """Return the page's text with the table of the kept results."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    return f"{before}{_BEGIN}\n{table(contents)}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
