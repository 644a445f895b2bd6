"""``why`` as a user calls it."""

import json
from pathlib import Path

import msgspec
import pytest

from tests.archive.history import made_up_run, stored
from tests.places import ask
from unstable_stream.archive import ArchiveWriter
from unstable_stream.errors import ArchiveError
from unstable_stream.events import Event, Trajectory, game_id

_GAME = game_id("run-a", "train", 4)


def _with_taunt(event: Event) -> Event:
    if not isinstance(event, Trajectory) or event.game_id != _GAME:
        return event
    turn = msgspec.structs.replace(event.turns[0], completion="[red]no[/red] \x1b[31m" + "x" * 99)
    return msgspec.structs.replace(event, turns=(turn, *event.turns[1:]))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    with ArchiveWriter(directory / "archive.duckdb") as writer:
        writer.write(stored([_with_taunt(event) for event in made_up_run()]))
    return directory


def _lines(data: Path, *arguments: str) -> list[str]:
    result = ask(data, "why", *arguments, width=120)
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.stdout.splitlines()]


def test_an_update_as_a_tree(data: Path) -> None:
    lines = _lines(data, "--update", "2", "-n", "2")
    assert lines[0] == "update 2  of run run-a"
    assert "├── started from checkpoint ckpt-000001" in lines
    assert "├── trained on 7 steps" in lines
    assert "│   └── … 5 more" in lines
    assert "└── made checkpoint ckpt-000002" in lines
    assert any("random" in line and "ckpt-000001 [abababab] -1" in line for line in lines)


def test_a_game_as_a_tree_down_to_the_checkpoint_it_fed(data: Path) -> None:
    lines = _lines(data, _GAME[:10])
    assert lines[0] == f"game {_GAME}  of run run-a"
    assert lines[1] == "TicTacToe-v0-train train game 4, seed 1004"
    assert "3 steps: 3 trained on, 0 dropped, 0 pending" in lines
    assert any("was trained on by update 2  at place 0 of the batch" in line for line in lines)
    assert any("made checkpoint ckpt-000002" in line for line in lines)
    assert sum("(told above)" in line for line in lines) >= 2


def test_what_a_model_wrote_is_not_obeyed(data: Path) -> None:
    text = "\n".join(_lines(data, _GAME))
    assert "[red]no[/red]" in text
    assert "\x1b" not in text
    assert "x" * 80 not in text


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
    assert {end["key"] for node in body["nodes"] for link in node["links"] for end in link["to"]} <= set(
        nodes
    )


def test_a_mistake_is_told(data: Path) -> None:
    assert "give one id" in ask(data, "why").output
    assert "give one id" in ask(data, "why", "x", "--update", "3").output
    refused = ask(data, "why", "nothing-like-it")
    assert isinstance(refused.exception, ArchiveError)
    assert "looked through the steps" in str(refused.exception)
