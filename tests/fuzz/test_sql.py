"""Any SQL on an archive gives rows or a typed error, and changes nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive.history import made_up_run, stored
from tests.archive.statements import STATEMENTS
from tests.fuzz.mutations import refusal
from unstable_stream.archive import ArchiveWriter, query
from unstable_stream.errors import ArchiveError

pytestmark = pytest.mark.longer

WORDS = """
    SELECT FROM WHERE WITH AS NULL runs games updates metrics ['a'] * , ( ) ; 1 'a' " -- /* */ $1 ?
    DELETE UPDATE INSERT INTO VALUES CREATE TABLE DROP VIEW BEGIN COMMIT PRAGMA SET
    ATTACH COPY TO INSTALL LOAD CALL EXPORT IMPORT DATABASE
"""
words = st.sampled_from(WORDS.split())
known = st.sampled_from([sql for sql, _ in STATEMENTS if len(sql) < 200])
statements = st.one_of(
    st.text(max_size=40),
    st.lists(words, max_size=12).map(" ".join),
    # Cut and put together: a part of one statement, then another.
    st.builds(lambda one, cut, other: one[:cut] + other, known, st.integers(0, 60), known),
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("data") / "archive.duckdb"
    with ArchiveWriter(path) as writer:
        writer.write(stored(made_up_run(updates=1)))
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@settings(max_examples=40, deadline=None)
@given(sql=statements)
def test_any_statement(archive: Path, sql: str) -> None:
    assert refusal(ArchiveError, lambda: query(archive, sql)) != "no reason given"
