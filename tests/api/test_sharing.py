"""Games played elsewhere become games like ours, at once or not at all; a data set of ours is read back."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest

import unstable_stream as us
from tests.command_line import run_command
from tests.forks import assert_killed
from unstable_stream.errors import ConfigError, EnvironmentUnavailableError, RunError, UnstableStreamError
from unstable_stream.history.hindsight.imported import load_mapping
from unstable_stream.log.port import EventLog
from unstable_stream.runs.history import RunStatus, list_runs

pytestmark = pytest.mark.longer

ENV = "TicTacToe-v0-train"
MOVES = {"game": "g", "seat": "who", "action": "act", "reward": "r", "observation": "obs"}
MAPPING = {"columns": MOVES, "constants": {"env_id": ENV, "model": ["red", "blue"]}}
MAPPINGS = Path(__file__).parents[2] / "examples" / "mappings"


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def moves(**changes: Any) -> list[dict[str, Any]]:
    """Two games of which the rows are mixed; the second is drawn."""
    rows = [
        {"g": "a", "who": 0, "act": "[4]", "r": 1, "obs": "empty"},
        {"g": "b", "who": 0, "act": "[0]", "r": 0, "obs": "empty too"},
        {"g": "a", "who": 1, "act": "[0]", "r": -1, "obs": "X in the middle"},
        {"g": "b", "who": 1, "act": "[8]", "r": 0, "obs": "X in a corner"},
        {"g": "a", "who": 0, "act": "[8]", "r": 1, "obs": "O in a corner"},
    ]
    return [row | changes for row in rows]


def asked(data: Path, question: str) -> list[tuple[Any, ...]]:
    return us.sql(question, data=data).rows()


def test_a_row_for_each_move_becomes_rated_games_and_a_second_import_adds_nothing(tmp_path: Path) -> None:
    file = written(tmp_path / "two.jsonl", moves())
    run_id, games = us.import_games(file, MAPPING, data=tmp_path)
    assert games == 2
    assert asked(tmp_path, "SELECT split, reason, winner, num_turns FROM game_outcomes ORDER BY 4 DESC") == [
        ("imported", "win", "red", 3),
        ("imported", "draw", None, 2),
    ]
    turns = "SELECT seat, observation, completion, action FROM turns JOIN game_outcomes USING (game_id)"
    assert asked(tmp_path, f"{turns} WHERE reason = 'win' ORDER BY game_turn") == [
        (0, "empty", "[4]", "[4]"),
        (1, "X in the middle", "[0]", "[0]"),
        (0, "O in a corner", "[8]", "[8]"),
    ]
    before = asked(tmp_path, "SELECT count(*) FROM events")
    assert us.import_games(file, MAPPING, data=tmp_path) == (run_id, 0)
    assert asked(tmp_path, "SELECT count(*) FROM events") == before
    run = us.open_run(run_id, tmp_path)
    assert [listed.state for listed in us.list_runs(data=tmp_path)] == ["completed"]
    assert run.audit().ok
    verified = run.verify()
    assert verified.ok
    assert {check.name: check.compared for check in verified.checks}["games"] == 0, "nobody can play them"


def test_traces_of_textarena_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    def row(player: int, model: str, turns: dict[str, tuple[list[Any], str]]) -> dict[str, Any]:
        logged = {
            time: {"observation": json.dumps(seen), "action": act} for time, (seen, act) in turns.items()
        }
        return {
            "player_game_id": 922 + player,
            "game_id": 469,
            "env_name": "SpellingBee-v0",
            "model_name": model,
            "player_id": player,
            "opponent_names": json.dumps({str(1 - player): {"model_name": "?"}}),
            "rewards": json.dumps({"0": 0, "1": -1}),
            "observations": json.dumps(logged),
            "num_turns": len(turns),
            "status": "finished",
            "reason": "Invalid Move: Player 1 tried submitting a non-english word.",
        }

    first = {
        "2025-02-10 19:44:53.635797+00": ([[-1, "Allowed Letters: einorsu"]], "[no]"),
        "2025-02-10 19:45:01.1+00": ([[-1, "Allowed Letters: einorsu"], [1, "[sun]"]], "[nose]"),
    }
    second = {"2025-02-10 19:44:56.225108+00": ([[-1, "Allowed Letters: einorsu"], [0, "[no]"]], "[sun]")}
    file = written(tmp_path / "traces.jsonl", [row(1, "Humanity", second), row(0, "meta-llama/llama", first)])
    us.import_games(file, MAPPINGS / "textarena.toml", data=tmp_path)
    assert asked(tmp_path, "SELECT seat, model_uid, reward, result FROM seats ORDER BY seat") == [
        (0, "meta-llama/llama", 0.0, "win"),
        (1, "Humanity", -1.0, "loss"),
    ]
    assert asked(tmp_path, "SELECT seat, action FROM actions ORDER BY game_turn") == [
        *((0, "[no]"), (1, "[sun]"), (0, "[nose]"))
    ]
    ((seen,),) = asked(tmp_path, "SELECT observation FROM turns WHERE game_turn = 1")
    assert seen == "[GAME] Allowed Letters: einorsu\n[Player 0] [no]"
    rated = asked(tmp_path, "SELECT model_uid FROM rating_ladder WHERE env_id = '*' ORDER BY mu DESC")
    assert rated == [("meta-llama/llama",), ("Humanity",)]
    ((text,),) = asked(tmp_path, "SELECT reason_text FROM game_outcomes")
    assert text.startswith("Invalid Move: Player 1")


def test_a_trajectory_in_atif_is_a_game_of_one_seat(tmp_path: Path) -> None:
    steps = [
        {"step_id": 1, "source": "system", "message": "Guess a word."},
        {"step_id": 2, "source": "user", "message": "Five letters."},
        {"step_id": 3, "source": "agent", "message": "[crane]", "metrics": {"prompt_tokens": 9}},
        {"step_id": 4, "source": "user", "message": "G.Y.."},
        {"step_id": 5, "source": "agent", "message": "[cigar]"},
    ]
    trajectory = {
        "schema_version": "ATIF-v1.7",
        "session_id": "s-1",
        "agent": {"name": "solver", "version": "1", "model_name": "some-model"},
        "steps": steps,
        "final_metrics": {"total_steps": 5, "extra": {"reward": 1.0}},
    }
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(trajectory, indent=2))
    us.import_games(file, MAPPINGS / "atif.toml", data=tmp_path)
    question = "SELECT model_uid, observation, action FROM turns JOIN trajectories USING (game_id)"
    assert asked(tmp_path, f"{question} ORDER BY game_turn") == [
        ("some-model", "Guess a word.\nFive letters.", "[crane]"),
        ("some-model", "G.Y..", "[cigar]"),
    ]


_GAMES = """
    SELECT game_index, env_id, seed, reason, reason_text, invalid_seat, num_turns, rewards, models
    FROM game_outcomes WHERE {} ORDER BY game_index
"""
_SEATS = """
    SELECT kind, policy_version, role, team, rank, turns, invalid_moves FROM seats
    WHERE {} ORDER BY ALL
"""
_TURNS = """
    SELECT game_index, t.* EXCLUDE (
        trajectory_id, run_id, game_id, record_number, format_feedback, step_info, latency_ms
    ) FROM turns AS t JOIN game_outcomes USING (game_id) WHERE {} ORDER BY game_index, game_turn
"""
_ACTIONS = """
    SELECT game_index, game_turn, seat, action, valid FROM actions JOIN game_outcomes USING (game_id)
    WHERE {} ORDER BY ALL
"""


def test_a_data_set_is_as_its_readers_want_it_and_gives_equal_games(trained: us.Run, tmp_path: Path) -> None:
    rows = us.export_dataset(trained, tmp_path / "set", data=trained.place.root)
    card = (tmp_path / "set" / "README.md").read_text()
    assert card.startswith("---\n")
    for split, count in rows.items():
        assert f"- split: {split}\n        path: data/{split}-*.parquet\n" in card
        (file,) = (tmp_path / "set" / "data").glob(f"{split}-*.parquet")
        assert pq.read_metadata(file).num_rows == count
        data = tmp_path / split
        run_id, games = us.import_games(file, tmp_path / "set" / "mapping.toml", name="back", data=data)
        assert run_id.startswith("back-")
        # Other runs of the data directory are not in it.
        its_games = f"SELECT game_id FROM game_outcomes WHERE run_id = '{trained.id}'"
        own = f"split = '{split}' AND game_id IN ({its_games})"
        assert games == len(asked(trained.place.root, _GAMES.format(own)))
        for question in (_GAMES, _SEATS, _TURNS, _ACTIONS):
            there = asked(trained.place.root, question.format(own))
            assert asked(data, question.format("split = 'imported'")) == there
    with pytest.raises(UnstableStreamError, match="is there already; replace it with --force"):
        us.export_dataset(trained, tmp_path / "set", data=trained.place.root)
    stale = tmp_path / "set" / "data" / "test-00000-of-00001.parquet"
    stale.write_bytes(b"of another run")
    assert us.export_dataset(trained, tmp_path / "set", data=trained.place.root, force=True) == rows
    assert not stale.exists()


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (moves(r=None), "game a: no reward for seat 0, 1"),
        (moves(act=None), "row 1: action is empty"),
        ([{"g": 1, "who": 0, "act": "x", "r": 1}], "row 1 has no column 'obs', which the mapping names for "),
        ([*moves(), {**moves()[0], "who": "X"}], "row 6: seat is 'X'; expected a whole number"),
        ([{**moves()[0], "who": 1}], "game a: no reward for seat 0"),
        ([{**moves()[0], "r": "NaN"}], "row 1: reward is 'NaN'; expected a number"),
        ([*moves(), 3], "row 6 is no object"),
        ([], "there is no row in it"),
        (moves(who=-1), "row 1: seat is -1; expected a whole number from 0 to 999"),
        (moves(who=10**9), "row 1: seat is 1000000000; expected"),
        (moves(who=0.5), "row 1: seat is 0.5; expected"),
        (moves(k="banana"), "row 1: kind is 'banana'; expected one of checkpoint, "),
        (moves(s=2**80), "row 1: seed is 12.*; expected a whole number from -9"),
        (moves(t="[1]"), "game a, move 0: tokens or logprobs: found 1 completion_token_ids and 0 logprobs"),
        (moves(t=["x"], l=[0]), "tokens or logprobs: a token that is no whole number from 0"),
        (moves(t=[2**40], l=[0]), "tokens or logprobs: .*out of bounds"),
        (moves(t=[1], l=["x"]), "tokens or logprobs: could not convert"),
        (moves(n="no list"), "row 1: turns is 'no list'; expected a list, or an object by time"),
        (moves(n=5), "row 1: turns is 5; expected a list"),
        (moves(n=[]), "game a has no move"),
        (moves(i=2), "game a: invalid_seat is 2, of 2 seats"),
    ],
)
def test_a_row_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path, rows: list[Any], says: str) -> None:
    file = written(tmp_path / "odd.jsonl", rows)
    more = {"k": "kind", "s": "seed", "t": "completion_token_ids", "l": "logprobs", "n": "turns"}
    more["i"] = "invalid_seat"
    there = {
        ours: name for name, ours in more.items() if rows and isinstance(rows[0], dict) and name in rows[0]
    }
    with pytest.raises(ConfigError, match=says):
        us.import_games(file, {**MAPPING, "columns": {**MOVES, **there}}, data=tmp_path)
    assert us.list_runs(data=tmp_path) == []


def test_code_that_a_file_names_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'run')!r})\nclass Game: ...\n")
    file = written(tmp_path / "odd.jsonl", moves(e=f"{tmp_path / 'evil.py'}:Game"))
    mapping = {"columns": {**MOVES, "env_id": "e"}}
    with pytest.raises(ConfigError, match=r"was not allowed to load it: if you trust it, give --allow-code"):
        us.import_games(file, mapping, data=tmp_path)
    assert not (tmp_path / "run").exists()
    assert us.list_runs(data=tmp_path) == []
    assert us.import_games(file, mapping, data=tmp_path, allow_code=["*evil.py:Game"]).games == 2


@pytest.mark.parametrize("of", [int, str, float, lambda time: f"2026-01-{time:02}"])
def test_moves_are_sorted_by_times_of_any_kind(tmp_path: Path, of: Any) -> None:
    rows = [
        {"g": "a", "who": time % 2, "act": f"[{time}]", "r": [1, -1], "obs": "", "t": of(time), "why": None}
        for time in (11, 3, 10, 1, 2)
    ]
    rows[2]["why"] = "it was over"  # what is known of a game may stand in any of its rows
    file = written(tmp_path / "timed.jsonl", rows)
    mapping = {**MAPPING, "columns": {**MOVES, "time": "t", "reason_text": "why"}}
    us.import_games(file, mapping, data=tmp_path)
    played = asked(tmp_path, "SELECT action FROM actions ORDER BY game_turn")
    assert [action for (action,) in played] == ["[1]", "[2]", "[3]", "[10]", "[11]"]
    assert asked(tmp_path, "SELECT reason_text FROM game_outcomes") == [("it was over",)]


def test_an_unknown_environment_is_named_with_close_ones(tmp_path: Path) -> None:
    file = written(tmp_path / "odd.jsonl", moves())
    unknown = {**MAPPING, "constants": {"env_id": "TicTacTo-v0-train"}}
    with pytest.raises(
        EnvironmentUnavailableError, match=r"unknown environment 'TicTacTo-v0-train'.*TicTacToe"
    ):
        us.import_games(file, unknown, data=tmp_path)
    assert us.list_runs(data=tmp_path) == []


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"columns": {**MOVES, "acton": "a"}}, "nothing is called 'acton'; did you mean action"),
        ({"columns": MOVES}, "no column is named for env_id"),
        ({"columns": {**MOVES, "env_id": "e"} | {"game": 3}}, "mapping: Expected `str`"),
        ({"colums": {}}, "expected tables"),
        (
            {"columns": {"env_id": "e", "seat": "s", "action": "a", "reward": "r"}},
            "which rows are of one game",
        ),
    ],
)
def test_a_mapping_that_cannot_be_meant_is_refused(mapping: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_mapping(mapping, "mapping")


def die(file: Path, data: Path, at: str) -> None:
    with mock.patch(at, side_effect=lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)):
        us.import_games(file, MAPPING, data=data)


@pytest.mark.parametrize(
    ("at", "games"),
    [
        ("unstable_stream.api.sharing.start_run", 2),
        ("unstable_stream.services.streams.service.run_processors", 0),
        ("unstable_stream.services.workers.archiver.run_archiver", 0),
    ],
)
def test_an_import_that_is_killed_is_completed_by_the_next(tmp_path: Path, at: str, games: int) -> None:
    file = written(tmp_path / "two.jsonl", moves())
    assert_killed(die, file, tmp_path, at)
    assert us.import_games(file, MAPPING, data=tmp_path).games == games
    assert asked(tmp_path, "SELECT count(*) FROM game_outcomes") == [(2,)]
    assert asked(tmp_path, "SELECT count(*) FROM rating_ladder WHERE env_id = '*'") == [(2,)]


def test_of_two_imports_of_a_file_at_once_one_is_recorded(tmp_path: Path) -> None:
    file = written(tmp_path / "two.jsonl", moves())

    others: list[int] = []

    async def then_another_begins(log: EventLog) -> list[RunStatus]:
        known = await list_runs(log)
        if not others:
            others.append(0)
            others[0] = (await asyncio.to_thread(us.import_games, file, MAPPING, data=tmp_path)).games
        return known

    with (
        mock.patch("unstable_stream.api.sharing.list_runs", then_another_begins),
        pytest.raises(RunError, match=r"two\.jsonl: another import of it began meanwhile"),
    ):
        us.import_games(file, MAPPING, data=tmp_path)
    assert others == [2]
    (run,) = us.list_runs(data=tmp_path)
    assert run_command("audit", run.run_id, "--data", ".", cwd=tmp_path).returncode == 0


def test_the_commands_say_what_they_did(trained: us.Run, tmp_path: Path) -> None:
    written(tmp_path / "two.jsonl", moves())
    columns = "".join(f'{name} = "{column}"\n' for name, column in MOVES.items())
    (tmp_path / "map.toml").write_text(f'[columns]\n{columns}[constants]\nenv_id = "{ENV}"\n')
    importing = ("import", "two.jsonl", "--mapping", "map.toml", "--data", "d")
    assert run_command(*importing, cwd=tmp_path).stdout.endswith(": 2 games\n")
    assert run_command(*importing, cwd=tmp_path).stdout.endswith(
        ": nothing new, its games are there already\n"
    )
    exported = run_command(
        "export", trained.id, "--dataset", "s", "--data", str(trained.place.root), cwd=tmp_path
    )
    assert "moves of split train" in exported.stderr
    both = run_command("export", trained.id, "--dataset", "s", "-o", "t", cwd=tmp_path)
    assert both.returncode == 2
