"""``why`` as a user calls it."""

import json
from pathlib import Path

import pytest

from tests.archive.history import made_up_run
from tests.places import archived, ask
from unstable_stream.errors import ArchiveError
from unstable_stream.events import game_id

_GAME = game_id("run-a", "train", 4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archived(tmp_path_factory.mktemp("data"), made_up_run()).parent


def _lines(data: Path, *arguments: str) -> list[str]:
    result = ask(data, "why", *arguments, width=120)
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.stdout.splitlines()]


def test_a_game_as_a_tree_down_to_the_checkpoint_it_fed(data: Path) -> None:
    lines = _lines(data, _GAME[:10])
    assert lines[0] == f"game {_GAME}  of run run-a"
    assert lines[1] == "TicTacToe-v0-train train game 4, seed 1004"
    assert "3 steps: 3 trained on, 0 dropped, 0 pending" in lines
    assert any("was trained on by update 2  at place 0 of the batch" in line for line in lines)
    assert any("made checkpoint ckpt-000002" in line for line in lines)
    assert sum("(told above)" in line for line in lines) >= 2


def test_json_is_all_of_it(data: Path) -> None:
    body = json.loads(ask(data, "why", "run-a:update:2", "--json", "--depth", "3").stdout)
    assert body["root"] == "update:run-a:2"
    nodes = {node["key"]: node for node in body["nodes"]}
    (trained,) = [link for link in nodes["update:run-a:2"]["links"] if link["relation"] == "trained on"]
    assert len(trained["to"]) == trained["total"] == 7
    step = nodes[trained["to"][0]["key"]]
    assert step["facts"]["completion_token_ids"] == [100, 101, 102, 103, 104]
    assert nodes[f"game:run-a:{_GAME}"]["facts"]["seed"] == 1004
    # Every end of every link is told of.
    ends = {end["key"] for node in body["nodes"] for link in node["links"] for end in link["to"]}
    assert ends <= nodes.keys()


def test_a_mistake_is_told(data: Path) -> None:
    assert "give one id" in ask(data, "why").output
    assert "give one id" in ask(data, "why", "x", "--update", "3").output
    refused = ask(data, "why", "nothing-like-it")
    assert isinstance(refused.exception, ArchiveError)
    assert "looked through the steps" in str(refused.exception)
