"""SQL: rows, files, cancelling, and the guard."""

import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow.parquet
import pytest
from starlette.testclient import TestClient

from tests.ui.web.conftest import client_of, serving
from unstable_stream.api.place import Place
from unstable_stream.archive import Cancel, query, stream
from unstable_stream.archive.reference import relations
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


_GAMES = "SELECT game_id, run_id, game_index, split, reason FROM game_outcomes"


def _rows(client: TestClient, base: str, sql: str, **to: str) -> dict[str, Any]:
    answer = client.get(f"{base}/sql/rows", params={"q": sql, **to})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_rows_are_sorted_and_filtered(client: TestClient, base: str) -> None:
    sql = 'SELECT range AS n, IF(range % 3 = 0, NULL, \'r\' || range % 3) AS "a ""b" FROM range(10); '
    assert _rows(client, base, sql, sort="n", desc="1")["rows"][0] == [9, None]
    assert [n for n, _ in _rows(client, base, sql, **{'is.a "b': "r2"})["rows"]] == [2, 5, 8]
    assert [n for n, _ in _rows(client, base, sql, **{'null.a "b': "", "from.n": "3"})["rows"]] == [3, 6, 9]
    assert [n for n, _ in _rows(client, base, sql, **{"from.n": "2", "below.n": "4"})["rows"]] == [2, 3]
    assert _rows(client, base, sql, **{"is.n": "1 OR true"})["rows"] == []
    assert _rows(client, base, "SELECT '--' AS x -- the end", sort="x")["rows"] == [["--"]]
    assert len(_rows(client, base, "FROM range(2000)", sort="range")["rows"]) == 1000


_INJECTED = ('n" DESC; DELETE FROM runs; --', "(SELECT 1)", "1")


@pytest.mark.parametrize("key", ["sort", "of", "is.", "null.", "from.", "below."])
def test_only_columns_of_the_query_sort_and_filter(client: TestClient, base: str, key: str) -> None:
    for name in _INJECTED:
        to = {key: name} if key in ("sort", "of") else {key + name: "1"}
        kind = "values" if key == "of" else "rows"
        answer = client.get(f"{base}/sql/{kind}", params={"q": "SELECT range AS n FROM range(3)", **to})
        assert answer.status_code == 400
        assert "the query has no column" in answer.text
    for kind in ("rows.csv", "rows.parquet"):
        answer = client.get(f"{base}/sql/{kind}", params={"q": "FROM range(3)", "sort": _INJECTED[0]})
        assert answer.status_code == 400
    assert "expected a number" in client.get(f"{base}/sql/rows?q=FROM range(3)&from.range=many").text


def test_values_of_a_column_filter(client: TestClient, base: str) -> None:
    sql = "SELECT CASE WHEN range < 6 THEN '<b>&' WHEN range < 9 THEN NULL ELSE '' END AS x FROM range(10)"
    part = client.get(f"{base}/sql/values", params={"q": sql, "of": "x", "facet": "x", "is.x": "<b>&"}).text
    assert "<b>" not in part
    assert re.search(r'&lt;b&gt;&amp;</a> <span class="quiet">6</span>', part)
    assert ">NULL<" not in part  # the filter counts
    part = client.get(f"{base}/sql/values", params={"q": sql, "of": "x", "facet": "x"}).text
    shown = re.findall(r'<a href="([^"]+)">(.*?)</a> <span class="quiet">(\d+)</span>', part)
    assert [number for _, _, number in shown] == ["6", "3", "1"]
    for link, _, number in shown:
        assert len(client.get(f"{base}/sql/rows{link.replace('&amp;', '&')}").json()["rows"]) == int(number)


@pytest.mark.parametrize("column", ["range", "range / 7.0", "range / 3"])
def test_a_histogram_counts_every_row_once(client: TestClient, base: str, column: str) -> None:
    sql = f"SELECT {column} AS n FROM range(100) UNION ALL SELECT 'nan'::DOUBLE"
    if column == "range":
        sql = "SELECT range AS n FROM range(100)"
    part = client.get(f"{base}/sql/values", params={"q": sql, "of": "n"}).text
    bins = re.findall(r'<a href="([^"]+)" aria-label="[^"]*: (\d+) rows"><title>', part)
    assert len(bins) > 12
    assert sum(int(rows) for _, rows in bins) == 100
    for link, rows in bins[::5]:
        found = client.get(f"{base}/sql/rows{link.replace('&amp;', '&')}").json()["rows"]
        assert len([n for (n,) in found if n is not None]) == int(rows)


def test_ids_lead_to_their_pages(client: TestClient, base: str) -> None:
    sql = (
        "SELECT s.run_id, s.game_id, s.trajectory_id, s.step_id, s.model_uid, u.update, s.env_id "
        "FROM steps AS s JOIN update_steps AS u USING (step_id) WHERE s.run_id = 'run-a' LIMIT 1"
    )
    found = _rows(client, base, sql)
    links = [found["links"].get(str(place), [None])[0] for place in range(7)]
    assert links[0] == f"{base}/runs/run-a"
    assert links[1].startswith(f"{base}/games/")
    assert links[6] is None
    for link in links[:6]:
        assert client.get(link).status_code == 200
    assert client.get(links[2]).url.path == links[1]  # a trajectory's game
    assert client.get(f"{base}/games/of/nothing").status_code == 404
    # Without its run a checkpoint is no name, where there are several; a text is never an address.
    assert _rows(client, base, "SELECT model_uid FROM checkpoints")["links"] == {}
    hostile = "SELECT 'javascript:alert(1)' AS game_id, '//evil.example' AS run_id, 'x' AS trajectory_id"
    assert _rows(client, base, hostile)["links"] == {"1": [f"{base}/runs/%2F%2Fevil.example"]}


def test_a_file_has_the_rows_that_are_shown(client: TestClient, base: str, tmp_path: Path) -> None:
    to = {"q": f"{_GAMES} WHERE run_id = 'run-a'", "is.split": "train", "sort": "game_index", "desc": "1"}
    shown = _rows(client, base, to.pop("q"), **to)
    to["q"] = f"{_GAMES} WHERE run_id = 'run-a'"
    (tmp_path / "rows.parquet").write_bytes(client.get(f"{base}/sql/rows.parquet", params=to).content)
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    assert table.column_names == shown["columns"]
    assert [list(row.values()) for row in table.to_pylist()] == shown["rows"]
    assert len(shown["rows"]) > 5
    lines = client.get(f"{base}/sql/rows.csv", params=to).text.splitlines()
    assert [line.split(",")[2] for line in lines[1:]] == [str(row[2]) for row in shown["rows"]]


def test_the_data_page_lists_all_that_can_be_asked(client: TestClient, base: str, tmp_path: Path) -> None:
    page = client.get(f"{base}/data").text
    for relation in relations():
        assert f"?q=FROM+{relation.name}" in page
    games = len(_rows(client, base, "FROM game_outcomes")["rows"])
    assert re.search(rf'game_outcomes</code></a></th>\s*<td class="right" data-label="Rows">{games}<', page)
    count = re.findall(r'data-count="([^"]+)"', page)[0].replace("&amp;", "&")
    assert client.get(count).json()["rows"] == [[2]]  # the runs
    with client_of(Place.at(tmp_path)) as empty:
        assert empty.get(f"{empty.get('/').url.path}data").status_code == 200


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
