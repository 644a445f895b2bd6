"""The pages hold together: links lead somewhere, every command is mentioned, every benchmark is listed."""

import re
from pathlib import Path

import pytest
import typer

from unstable_stream.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    targets = [target for target in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = getattr(typer.main.get_command(app), "commands")  # noqa: B009 - Typer publishes no type for it
    assert [name for name in names if f"unstable-stream {name}" not in readme] == []


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = list((ROOT / "docs").glob("*.md"))
    assert [path.name for path in pages if f"docs/{path.name}" not in readme] == []


def test_every_benchmark_is_described() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    scripts = [
        path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in ("__init__", "harness")
    ]
    assert scripts
    assert [name for name in scripts if f"`{name}`" not in page] == []
