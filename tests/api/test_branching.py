"""Playing on from a position of a recorded game: a run like others, whose games begin there."""

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

import unstable_stream as us
from tests.places import ask
from tests.ui.web.conftest import client_of
from unstable_stream.api import branching
from unstable_stream.errors import ArchiveError, ConfigError, RunError
from unstable_stream.runs.config import RunConfig

pytestmark = pytest.mark.longer

TURN = 2


@pytest.fixture(scope="module")
def parent(trained: us.Run) -> us.Game:
    """A game of the run with a checkpoint and a scripted player, long enough to branch."""
    games = trained.games(split="eval", opponent="random-legal", min_moves=TURN + 2, sort="earliest")
    return games[0]


@pytest.fixture(scope="module")
def branched(trained: us.Run, parent: us.Game) -> us.Run:
    seats = [f"{trained.id}@2", "random-legal"]
    run = us.branch(parent, TURN, seats, games=6, data=trained.place.root)
    assert run.state == "built"
    return run.start(live=False)


def test_all_games_begin_with_the_moves_to_the_position(branched: us.Run, parent: us.Game) -> None:
    assert branched.state == "completed"
    began = [(move.seat, move.action) for move in parent.turns[:TURN]]
    games = branched.games(limit=None)
    assert len(games) == 6
    for game in games:
        assert [(move.seat, move.action) for move in game.turns[:TURN]] == began
        assert all(move.completion is None for move in game.turns[:TURN])
    ((first,),) = branched.sql("SELECT min(game_turn) FROM turns").rows()
    assert first >= TURN


def test_its_log_adds_up_and_its_games_are_played_again_alike(branched: us.Run) -> None:
    assert branched.audit().ok
    verified = branched.verify()
    assert verified.ok, verified.problems


def test_its_values_are_means_of_rewards(branched: us.Run, parent: us.Game, trained: us.Run) -> None:
    values = us.branch_values(branched)
    assert [(value.seat, value.player, value.games) for value in values] == [
        (0, f"{trained.id}@2", 6),
        (1, "random-legal", 6),
    ]
    rows = branched.sql("SELECT seat, avg(reward) FROM seats GROUP BY seat ORDER BY seat").rows()
    assert [(value.seat, value.value) for value in values] == rows
    assert all(value.low <= value.value <= value.high for value in values)
    viewed = us.sql(
        "SELECT parent_game_id, turn, tried, seat, player, games, value FROM branches "
        "WHERE run_id = ? ORDER BY seat",
        [branched.id],
        data=trained.place.root,
    ).rows()
    assert viewed == [(parent.id, TURN, "[]", v.seat, v.player, v.games, v.value) for v in values]
    with pytest.raises(RunError, match="is no branch"):
        us.branch_values(trained)


def test_another_move_is_tried_by_command_and_a_branch_is_branched(branched: us.Run, parent: us.Game) -> None:
    data = branched.place.root
    free = next(cell for cell in range(9) if f"[{cell}]" not in [move.action for move in parent.turns[:TURN]])
    settings = ("--seats", "random-legal", "--seats", "random-legal", "-k", "2", "-q", "--json")
    shown = ask(data, "branch", parent.id, "--turn", str(TURN), "--then", f"[{free}]", *settings)
    assert [row["player"] for row in json.loads(shown.stdout)] == ["random-legal"] * 2
    tried = us.sql("SELECT DISTINCT tried FROM branches WHERE tried <> '[]'", data=data).rows()
    assert tried == [(json.dumps([f"[{free}]"]),)]
    again = us.branch(branched.games(limit=1)[0].id, TURN, ["random-legal"] * 2, games=2, data=data)
    assert again.config.evaluation.branch is not None
    assert branched.config.evaluation.branch is not None
    assert again.config.evaluation.branch.seed == branched.config.evaluation.branch.seed


def test_the_page_of_the_game_shows_what_its_positions_are_worth(branched: us.Run, parent: us.Game) -> None:
    place = branched.place
    with client_of(place) as client:
        page = client.get(f"/{place.root.name}/games/{parent.id}").text
        ours = client.get(f"/{place.root.name}/games/{branched.games(limit=1)[0].id}").text
    mover = us.branch_values(branched)[parent.turns[TURN].seat]
    for shown in (f'#move-{TURN}">Before move {TURN}</a>', f"<b>{mover.value:+.2f}</b>", branched.id):
        assert shown in page
    assert f'/games/{parent.id}#move-{TURN}">move {TURN} of another game</a>' in ours


def test_the_run_may_have_been_resumed_with_other_environments(
    trained: us.Run, parent: us.Game, monkeypatch: pytest.MonkeyPatch
) -> None:
    nim = {"env_id": "Nim-v0-train", "num_players": 2}
    tree = trained.config.model_dump(exclude_defaults=True) | {"train_envs": [nim], "eval_envs": [nim]}
    resumed = SimpleNamespace(config=RunConfig.model_validate(tree))
    monkeypatch.setattr(branching, "open_run", lambda *_, **__: resumed)
    run = us.branch(parent, TURN, ["random-legal"] * 2, games=2, data=trained.place.root)
    assert [env.env_id for env in run.config.evaluated_envs] == [parent.env_id]


def test_what_is_not_there_is_refused_in_one_line(
    trained: us.Run, parent: us.Game, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, both = trained.place.root, ["random-legal"] * 2
    with pytest.raises(ConfigError, match=rf"turn=90: game {parent.id} has turns 0 to "):
        us.branch(parent, 90, both, data=data)
    with pytest.raises(ConfigError, match="has 2 seats, and 3 players are named"):
        us.branch(parent, 0, [*both, "base"], data=data)
    with pytest.raises(ArchiveError, match="no game's id starts with"):
        us.branch("nothing", 0, both, data=data)
    seen = "SELECT 0, 'another text' WHERE ? IS NOT NULL AND ? IS NOT NULL"
    monkeypatch.setattr(branching, "_SEEN", seen)
    with pytest.raises(RunError, match=r"cannot be made again.*\nanother text\nand now it shows\n"):
        us.branch(parent, TURN, both, data=data)


def test_an_exported_branch_has_the_seed_that_plays_it_again(branched: us.Run, tmp_path: Path) -> None:
    us.export_dataset(branched, tmp_path, data=branched.place.root)
    seeds = set(pq.read_table(tmp_path / "data" / "eval-00000-of-00001.parquet")["seed"].to_pylist())
    assert branched.config.evaluation.branch is not None
    assert seeds == {branched.config.evaluation.branch.seed}
