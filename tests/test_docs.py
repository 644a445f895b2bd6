"""The pages hold together: links lead somewhere, the index has all, every word is explained once."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from unstable_stream.archive.reference import relations
from unstable_stream.events import EVENT_TYPES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Those that index and navigation name one by one: all but the decisions, which are a list.
GROUPED = {page.relative_to(DOCS).as_posix() for page in DOCS.glob("[!d]*/*.md")}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
_LINK = re.compile(r"\[[^\]]*\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
_PROOF = re.compile(r"\[`(test_\w+)`\]\([./]+(tests/[\w/]+\.py)\)")


@cache
def text_of(page: Path) -> str:
    """Return what is written in a file, without the blocks of code of a page."""
    return re.sub(r"^ *```(?s:.*?)^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings make."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_headings_and_tests_that_exist(page: Path) -> None:
    links = [
        (page.parent / target if target else page, anchor) for target, anchor in _LINK.findall(text_of(page))
    ]
    assert [str(target) for target, _ in links if not target.exists()] == []
    assert [f"{target}#{name}" for target, name in links if name and name not in anchors(target)] == []
    proofs = _PROOF.findall(text_of(page))
    assert [name for name, file in proofs if f"def {name}(" not in text_of(ROOT / file)] == []
    assert proofs or page.stem not in ("guarantees", "from-unstable-baselines")


def test_index_and_navigation_name_every_page_once() -> None:
    linked = re.findall(r"\]\((?!\.\./)([^)]+\.md)\)", text_of(DOCS / "README.md"))
    assert sorted(linked) == sorted(GROUPED)
    navigation = re.findall(r": (\S+\.md)$", text_of(ROOT / "mkdocs.yml"), re.MULTILINE)
    assert len(set(navigation)) == len(navigation)
    assert GROUPED - set(navigation) == set()


@pytest.mark.longer
def test_the_site_builds_without_a_warning_and_llms_txt_lists_every_page(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="not installed: make dev-env")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = re.findall(r"^- \[.+?\]\((.+?)\): \S", text_of(tmp_path / "llms.txt"), re.MULTILINE)
    assert len(set(listed)) == len(listed)
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - set(listed) == set()
    assert [page for page in listed if not (tmp_path / page).exists()] == []


def test_every_benchmark_is_described() -> None:
    others = {"__init__", "harness", "between_updates", "curves", "restart_picture", "summary"}
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - others
    assert scripts
    assert [name for name in scripts if f"`{name}`" not in text_of(ROOT / "benchmarks" / "README.md")] == []


def test_the_glossary_explains_each_word_once_and_every_event_type_somewhere() -> None:
    lines = [
        line.strip("|").split(" | ") for line in text_of(DOCS / "reference" / "glossary.md").splitlines()
    ]
    rows = [[cell.strip() for cell in row] for row in lines if len(row) == 3 and row[0] != " Word"]
    words = [word for word, _, _ in rows]
    assert len(words) == len(set(words))
    assert [word for word, meaning, where in rows if not meaning.endswith(".") or "](" not in where] == []
    named = {name for *_, where in rows for name in re.findall(r"`([^`]+)`", where)}
    assert named - set(EVENT_TYPES) - {relation.name for relation in relations()} == set()
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
