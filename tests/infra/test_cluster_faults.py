"""The page docs/cluster-faults.md, and what results of faults look like."""

from pathlib import Path

from tools.lab.faults import FAULTS
from tools.lab.results import FaultResult, read_results, table

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_names_every_fault() -> None:
    page = (DOCS / "cluster-faults.md").read_text()
    for fault in FAULTS.values():
        assert f"| `{fault.name}` | {fault.what} |" in page


def test_a_line_has_all_of_a_result(tmp_path: Path) -> None:
    result = FaultResult(
        "links-moment", "links are down", 2.0, 1, 0.5, 3.0, ["error: it ended"], audit="balanced"
    )
    (tmp_path / "lines").write_text(result.line() + "\n" + result.line() + "\n")
    assert read_results(tmp_path / "lines") == [result, result]


def test_the_table_says_how_each_run_went_on() -> None:
    went_on = FaultResult(
        "a", "first", 4.0, 2, 1.0, 3.0, audit="balanced", verify="verified", note="on it: x"
    )
    resumed = FaultResult("b", "second", 0.0, 0, 1.0, 9.0, ["error: it ended"], audit="balanced")
    failed = FaultResult("c", "third", failure="it did not go on\nin many words")
    assert table([went_on, resumed, failed])[2:] == [
        "| `a` | first (on it: x) | 2 | 1 s | 3 s | went on | balanced, verified |",
        "| `b` | second | – | 1 s | 9 s | ended 1 ×, resumed | balanced |",
        "| `c` | third | – | none | 0 s | went on | **it did not go on** |",
    ]
