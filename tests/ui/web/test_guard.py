"""Nobody gets in without the link, by another name, or from another origin; pages load nothing else."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.ui.web.conftest import HOST, TOKEN
from unstable_stream.api.place import Place
from unstable_stream.ui.web import Site, build_app
from unstable_stream.ui.web.serve import hosts_of


@pytest.fixture
def stranger(data: Path) -> TestClient:
    """A browser that has not opened the link."""
    app = build_app(Site([Place.at(data)]), token=TOKEN, hosts=[HOST])
    return TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)


def test_the_link_gives_a_cookie_and_takes_the_token_out_of_the_address(stranger: TestClient) -> None:
    answer = stranger.get(f"/somewhere/runs?split=eval&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/somewhere/runs?split=eval")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert stranger.get("/").status_code == 307


@pytest.mark.parametrize("path", ["/", "/static/ui.js", "/data/events", "/?token=wrong", "/?token=", "/x"])
def test_without_the_token_there_is_nothing(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 403
    assert "made up" not in answer.text


def test_the_cookie_must_be_right(stranger: TestClient) -> None:
    assert stranger.get("/", headers={"cookie": "unstable_stream_ui_8787=wrong"}).status_code == 403
    assert stranger.get("/", headers={"cookie": 'a="'}).status_code == 403
    assert stranger.get("/", headers={"cookie": f"unstable_stream_ui_8787={TOKEN}"}).status_code == 307
    # Another program of this machine may have set a cookie as odd as this one.
    odd = f'prefs={{"a":1}}; unstable_stream_ui_8787={TOKEN}'
    assert stranger.get("/", headers={"cookie": odd}).status_code == 307


def test_the_first_visit_leads_to_no_other_host(stranger: TestClient) -> None:
    for path in ("//evil.example/", "/%2F%2Fevil.example/", "/\\evil.example"):
        answer = stranger.get(f"http://{HOST}{path}?token={TOKEN}")
        assert answer.headers["location"].startswith("/")
        assert not answer.headers["location"].startswith(("//", "/\\"))


@pytest.mark.parametrize(
    "host", ["evil.example:8787", "127.0.0.1:8788", "127.0.0.1", "", "127.0.0.1:8787.evil"]
)
def test_a_foreign_name_is_refused(client: TestClient, base: str, host: str) -> None:
    assert client.get(f"{base}/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8787"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
)
def test_pages_of_others_are_refused(client: TestClient, base: str, headers: dict[str, str]) -> None:
    assert client.get(f"{base}/", headers=headers).status_code == 403


def test_a_link_on_another_page_may_lead_here(client: TestClient, base: str) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get(f"{base}/", headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_is_changed_from_elsewhere(client: TestClient, base: str, method: str) -> None:
    assert client.request(method, f"{base}/").status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/..%2fx"],
)
def test_no_path_leads_out(client: TestClient, path: str) -> None:
    answer = client.get(f"http://{HOST}{path}")
    assert answer.status_code == 404
    assert "import" not in answer.text
    assert "root:" not in answer.text


def test_pages_may_load_nothing_from_elsewhere(client: TestClient, base: str) -> None:
    for path in (f"{base}/", "/static/ui.js", f"{base}/nothing"):
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert client.get(path).headers["x-content-type-options"] == "nosniff"


def test_the_scripts_of_others_have_their_licence_and_stay_small() -> None:
    package = Path(__file__).parents[3] / "unstable_stream"
    shared = package / "history" / "views" / "report" / "static"
    files = [*(package / "ui" / "web" / "static").iterdir(), *shared.iterdir()]
    assert sum(file.stat().st_size for file in files) < 300_000
    assert "MIT License" in (shared / "uplot-LICENSE.txt").read_text(encoding="utf-8")
    own = [file for file in files if file.suffix == ".js" and not file.name.startswith("uplot")]
    assert [file.name for file in own if "innerHTML =" in file.read_text() and file.name != "ui.js"] == []


def test_port_80_has_no_number_in_a_browser() -> None:
    assert hosts_of("127.0.0.1", 80, ["gpu-box.lan"])[0] == "gpu-box.lan:80"
    assert {"gpu-box.lan", "127.0.0.1", "localhost"} < set(hosts_of("127.0.0.1", 80, ["gpu-box.lan"]))
    assert "localhost" not in hosts_of("127.0.0.1", 8787, [])
    assert hosts_of("::1", 8787, [])[0] == "[::1]:8787"
