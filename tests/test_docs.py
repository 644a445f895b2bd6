"""The pages hold together: links lead somewhere, the index has all, every word is explained once."""

import ast
import re
from pathlib import Path

import pytest

from unstable_stream.archive.reference import relations
from unstable_stream.events import EVENT_TYPES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    targets = [target for target in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_is_linked_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(name for name in pages if f"]({name})" not in index) == []


def test_every_benchmark_is_described() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    scripts = [
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if path.stem not in ("__init__", "harness", "between_updates", "curves", "restart_picture", "summary")
    ]
    assert scripts
    assert [name for name in scripts if f"`{name}`" not in page] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings make."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def glossary() -> list[list[str]]:
    """Return the rows of the glossary's tables of three columns: word, meaning, where."""
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")
    ]
    return [row for row in rows if len(row) == 3 and row[0] != "Word"]


@pytest.mark.parametrize("row", glossary(), ids=lambda row: row[0])
def test_every_word_of_the_glossary_is_where_it_says(row: list[str]) -> None:
    _, meaning, where = row
    assert meaning.endswith(".")
    recorded = set(EVENT_TYPES) | {relation.name for relation in relations()}
    assert [name for name in re.findall(r"`([^`]+)`", where) if name not in recorded] == []
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", where)
    assert links
    for target, anchor in links:
        page = ROOT / "docs" / target
        assert page.exists(), target
        assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


def test_the_glossary_explains_each_word_once_and_every_event_type_somewhere() -> None:
    words = [row[0] for row in glossary()]
    assert len(words) == len(set(words))
    named = {name for row in glossary() for name in re.findall(r"`([^`]+)`", row[2])}
    assert set(EVENT_TYPES) - named - {"metrics"} == set()
    wanted = {"partition", "position", "offset", "fold", "host", "run", "game", "split", "step", "update"}
    assert wanted <= set(words)


_QUESTIONS = {"What", "Where", "How", "Which", "Who", "Whose", "Why"}


def test_docstrings_begin_with_a_statement_not_with_a_question_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{child.lineno}"
        for path in sorted((ROOT / "unstable_stream").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.Expr)
        and isinstance(child.value, ast.Constant)
        and isinstance(child.value.value, str)
        and child.value.value.split()[0] in _QUESTIONS
    ]
    assert found == []


def test_the_tests_that_prove_a_guarantee_exist() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    named = re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)", page)
    assert len(named) > 20
    missing = [
        name for name, file in named if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert missing == []
