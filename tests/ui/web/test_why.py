"""The graph of causes and effects."""

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.ui.web.conftest import client_of
from unstable_stream.api.place import Place
from unstable_stream.events import game_id, step_id, trajectory_id


def ends(page: str) -> set[str]:
    """Return the names of the boxes."""
    return set(re.findall(r'aria-label="(\w+ [\w-]+)"><rect', page))


def test_a_step_has_causes_and_effects(client: TestClient, base: str) -> None:
    game = game_id("run-a", "train", 4)
    step = step_id(trajectory_id(game, 0), 0)
    page = client.get(f"{base}/why?of={step}").text
    assert {
        f"step {step}",
        f"game {game}",
        "checkpoint ckpt-000001",
        "update 2",
        "checkpoint ckpt-000002",
    } <= ends(page)
    assert "Watch its game" in page
    # Every box leads on.
    for address in re.findall(r'<a href="([^"]+)" aria-label', page):
        assert client.get(address.replace("&amp;", "&")).status_code == 200


@pytest.mark.parametrize("of", ["run-a:update:3", "run-a:ckpt-000003", "run-a"])
def test_other_things_have_them_too(client: TestClient, base: str, of: str) -> None:
    page = client.get(f"{base}/why?of={of}")
    assert page.status_code == 200
    assert len(ends(page.text)) > 1


def test_a_wrong_name_is_answered_in_words(client: TestClient, base: str) -> None:
    assert client.get(f"{base}/why?of=%3Cscript%3E").status_code == 404
    assert client.get(f"{base}/why?of=run-a&hops=99").status_code == 400
    assert "Name something" in client.get(f"{base}/why").text


def test_without_a_name_there_is_something_to_begin_with(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/why").text
    starts = re.findall(r'<a href="([^"]+)">(the latest \w+|a step) ', page)
    assert [kind for _, kind in starts] == [
        "the latest update",
        "the latest checkpoint",
        "a step",
        "the latest game",
    ]
    for address, _ in starts:
        assert client.get(address.replace("&amp;", "&")).status_code == 200


def test_a_place_without_runs_has_nothing_to_begin_with(tmp_path: Path) -> None:
    with client_of(Place.at(tmp_path)) as client:
        assert "nothing to begin with" in client.get(f"{client.get('/').url.path}why").text
