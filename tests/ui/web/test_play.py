"""Begin a game against a checkpoint; tests/api/test_human_play.py plays some to their ends."""

import pytest
from starlette.testclient import TestClient

from tests.ui.web.conftest import HOST

_ORIGIN = {"origin": f"http://{HOST}"}


def test_checkpoints_are_offered(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/play").text
    assert '<option value="run-a@6">' in page
    assert '<option value="run-b@0">' in page


@pytest.mark.parametrize(
    ("policy", "status"), [("tiny-player", 400), ("../../etc", 400), ("run-z@1", 404), ("", 400)]
)
def test_what_cannot_be_played_is_said(client: TestClient, base: str, policy: str, status: int) -> None:
    answer = client.post(f"{base}/play", data={"policy": policy}, headers=_ORIGIN)
    assert answer.status_code == status
    assert 'role="alert"' in answer.text


def test_a_game_that_is_not_played_here(client: TestClient, base: str) -> None:
    assert client.get(f"{base}/play/nothing").status_code == 404
    for path in ("move", "give-up"):
        assert client.post(f"{base}/play/nothing/{path}", headers=_ORIGIN).status_code == 404
        assert client.post(f"{base}/play/nothing/{path}").status_code == 403
