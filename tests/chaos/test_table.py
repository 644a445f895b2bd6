"""The tables of docs/evidence/chaos.md are those of what was done."""

from pathlib import Path

from tests.chaos.table import lines, read_results

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_shows_the_results_beside_it() -> None:
    directories = sorted((DOCS / "data" / "chaos").iterdir())
    results = [result for directory in directories for result in read_results(directory)]
    assert results
    assert "\n".join(lines(results)) in (DOCS / "evidence" / "chaos.md").read_text()
