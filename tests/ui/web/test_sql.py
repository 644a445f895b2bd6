"""SQL: rows, files, cancelling, and the guard."""

import json
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pyarrow.parquet
import pytest
from starlette.testclient import TestClient

from tests.ui.web.conftest import serving
from unstable_stream.api.place import Place
from unstable_stream.archive import Cancel, query, stream
from unstable_stream.errors import ArchiveError
from unstable_stream.ui.web.pages import sql as pages_sql

_ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"


def test_rows_come_as_json(client: TestClient, base: str) -> None:
    sql = (
        "SELECT 1 AS one, 1.5::DOUBLE AS half, 'nan'::DOUBLE AS odd, 9007199254740993 AS big, NULL AS none, "
        "[1] AS list"
    )
    answer = client.get(f"{base}/sql/rows?q={quote(sql)}")
    assert answer.status_code == 200
    found = answer.json()
    assert found["columns"] == ["one", "half", "odd", "big", "none", "list"]
    assert found["rows"] == [[1, 1.5, None, "9007199254740993", None, "[1]"]]
    assert not found["more"]
    assert json.loads(client.get(f"{base}/sql/rows?q=FROM range(1001)").text)["more"]


def test_rows_come_as_files(client: TestClient, base: str, tmp_path: Path) -> None:
    sql = quote("SELECT game_index, reason FROM game_outcomes WHERE run_id = 'run-a' ORDER BY ALL LIMIT 2")
    answer = client.get(f"{base}/sql/rows.csv?q={sql}")
    assert answer.text == "game_index,reason\n0,win\n0,win\n"
    assert "rows.csv" in answer.headers["content-disposition"]
    (tmp_path / "rows.parquet").write_bytes(client.get(f"{base}/sql/rows.parquet?q={sql}").content)
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").num_rows == 2


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("DELETE FROM metrics", "DELETE is refused"),
        ("SELECT * FROM read_text('/etc/passwd')", "disabled by configuration"),
        ("SELECT nothing FROM games", "nothing"),
        ("", "no query"),
    ],
)
def test_the_guard_is_that_of_the_command(client: TestClient, base: str, sql: str, says: str) -> None:
    for kind in ("rows", "rows.csv", "rows.parquet"):
        answer = client.get(f"{base}/sql/{kind}?q={quote(sql)}")
        assert answer.status_code == 400
        assert says in answer.text


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_a_link_of_another_site_asks_nothing(client: TestClient, base: str, site: str) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    for kind in ("rows", "rows.csv", "rows.parquet"):
        assert client.get(f"{base}/sql/{kind}?q=FROM runs", headers=headers).status_code == 403
    page = client.get(f"{base}/sql?q=FROM runs", headers=headers).text
    assert "FROM runs" in page
    # Whoever types or opens a link asks; whom another page sent here looks first.
    assert ("data-own" in page) == (site == "none")
    assert ("Another site led here" in page) == (site != "none")


def test_files_leave_nothing_behind(
    client: TestClient, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for kind in ("csv", "parquet"):
        assert client.get(f"{base}/sql/rows.{kind}?q=FROM range(100000)").status_code == 200
        assert client.get(f"{base}/sql/rows.{kind}?q=SELECT nothing").status_code == 400
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_of_rows_is_bounded(
    client: TestClient, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(pages_sql, "_MOST_BYTES", 50_000)
    answer = client.get(f"{base}/sql/rows.{kind}?q=SELECT random() FROM range(1000000)")
    assert (answer.status_code, list(tmp_path.iterdir())) == (400, [])
    assert "more than 50,000 bytes: ask for fewer" in answer.text


def test_a_query_in_the_address_stays_text(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/sql?q=%3C/textarea%3E%3Cscript%3E").text
    assert "&lt;/textarea&gt;&lt;script&gt;" in page


def test_a_query_that_nobody_waits_for_ends(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with serving(Place.at(data)) as link, httpx.Client(base_url=link.split("/?")[0]) as browser:
        browser.get(link)
        with pytest.raises(httpx.ReadTimeout):
            browser.get(f"/{data.name}/sql/rows.csv?q={quote(_ENDLESS)}", timeout=2)
        deadline = time.monotonic() + 60
        while list(tmp_path.iterdir()):  # the file that its rows were to go to
            assert time.monotonic() < deadline


def test_a_query_that_is_cancelled_before_it_begins(archive: Path) -> None:
    cancel = Cancel()
    cancel()
    with pytest.raises(ArchiveError, match="cancelled"), stream(archive, "FROM runs", cancel=cancel):
        pass
    assert query(archive, "FROM runs").rows
