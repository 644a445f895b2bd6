"""``games``: every filter, every order, and what a transcript tells of tokens and rewards."""

import json
from pathlib import Path

import msgspec
import pytest

from tests.archive.history import made_up_run
from tests.places import archived, ask
from unstable_stream.api.game_filter import Sort
from unstable_stream.api.games import find_games
from unstable_stream.events import Event, GameOutcome, GameStarted, Trajectory, game_id

pytestmark = pytest.mark.longer

_CUT = game_id("run-a", "train", 2)


def _with_cut_completion(event: Event) -> Event:
    """Let train game 2 have a completion cut at the token limit, and train game 3 end at the move limit."""
    if isinstance(event, Trajectory) and event.game_id == _CUT:
        turn = msgspec.structs.replace(event.turns[0], finish_reason="length")
        return msgspec.structs.replace(event, turns=(turn, *event.turns[1:]))
    if isinstance(event, GameOutcome) and event.split == "train" and event.game_index == 3:
        return msgspec.structs.replace(event, reason="truncated")
    return event


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    events = [_with_cut_completion(event) for event in made_up_run(updates=3)]
    return archived(tmp_path_factory.mktemp("data"), events + made_up_run("run-b", updates=1)).parent


def _output(data: Path, *arguments: str) -> str:
    result = ask(data, *arguments, width=100)
    assert result.exit_code == 0, result.output
    return result.stdout


def _train(data: Path, *filters: str) -> list[int]:
    arguments = ["games", "--json", "--run", "run-a", "--split", "train", *filters]
    return [row["number"] for row in json.loads(_output(data, *arguments))]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        # Game i is played by policy i // 4 in seat i % 2; it is won, lost or drawn as i % 3 is 0, 1 or 2.
        (["--seat", "1"], [13, 11, 9, 7, 5, 3, 1]),
        (["--seat", "1", "--result", "win"], [9, 3]),
        (["--model", "random", "--seat", "1", "--result", "win"], [10, 4]),
        (["--opponent", "random", "--model", "ckpt-000001"], [7, 6, 5, 4]),
        (["--opponent", "rand"], []),
        # Update 2 names all steps of policy 1, trained on or dropped.
        (["--update", "2"], [7, 6, 5, 4]),
        # Game i lasts 2 + i % 5 moves.
        (["--min-moves", "6"], [9, 4]),
        (["--max-moves", "2"], [10, 5, 0]),
        (["--truncated"], [3, 2]),
        (["--invalid"], []),
        (["--env", "tictac", "-n", "1"], [13]),
        (["--env", "Chess"], []),
        (["--state", "abandoned"], [13]),
        (["--state", "in-flight"], [12]),
        (["--state", "abandoned", "--opponent", "random", "--seat", "1"], [13]),
        (["--state", "abandoned", "--result", "win"], []),
        (["--sort", "earliest", "-n", "3"], [0, 1, 2]),
        (["--sort", "longest", "-n", "3"], [4, 9, 3]),
        (["--sort", "shortest", "-n", "2"], [0, 5]),
        # The policy's turn t in game i has 4 + i % 3 + t tokens: game 8 has 5 moves, so 3 turns: 6 + 7 + 8.
        (["--sort", "tokens", "-n", "2"], [8, 4]),
    ],
)
def test_filters_and_orders(data: Path, filters: list[str], expected: list[int]) -> None:
    assert _train(data, *filters) == expected


def test_rewards_tokens_and_prompts_are_shown(data: Path) -> None:
    game = game_id("run-a", "train", 4)
    plain = _output(data, "games", "show", game)
    assert "#100" not in plain
    assert "<|user|>" not in plain
    assert "reward game -1  final -1.25  step -1.125  trained on in update 2" in plain
    full = _output(data, "games", "show", game, "--tokens", "--prompts")
    assert "prompt <|user|>[GAME] Board after 0 moves.<|assistant|>" in full
    # The made-up model is nowhere on disk, so its tokens have numbers only.
    assert "tokens #100 -0.50  #101 -0.50  #102 -0.50  #103 -0.50  #104 -0.50" in full


def test_a_dropped_step_says_so(data: Path) -> None:
    # The last step of each update's games is dropped: game 7 is the last of policy 1.
    output = _output(data, "games", "show", game_id("run-a", "train", 7))
    assert "dropped at update 2: overflow" in output
    assert "trained on in update 2" in output


def test_json_holds_all_of_a_move(data: Path) -> None:
    body = json.loads(_output(data, "games", "show", game_id("run-a", "train", 4), "--json"))
    move = body["moves"][2]
    assert move["token_ids"] == [100, 101, 102, 103, 104, 105]
    assert move["logprobs"] == [-0.5] * 6
    stages = (move["raw_reward"], move["final_reward"], move["step_reward"], move["fate"], move["update"])
    assert stages == (-1.0, -1.25, -1.125, "trained", 2)
    assert body["moves"][1]["step_id"] is None
    assert body["winner"] == "random"
    assert [move["action"] for move in body["moves"]] == [f"[{i}]" for i in range(6)]
    evaluated = json.loads(_output(data, "games", "show", game_id("run-a", "eval", 0), "--json"))
    assert [move["fate"] for move in evaluated["moves"]] == [None] * 5


def _of_teams(event: Event) -> Event:
    """Let seats 0 and 1 play against two like the second of a game of two; seat 1 is another model's."""
    if not isinstance(event, GameOutcome | GameStarted):
        return event
    first, second = event.seats
    change = msgspec.structs.replace
    seats = (
        change(first, team=0),
        change(first, seat=1, team=0, model_uid="ckpt-partner-000001", kind="checkpoint"),
        change(second, seat=2, team=1),
        change(second, seat=3, team=1),
    )
    return change(event, seats=seats)


def test_a_partner_is_no_opponent_whether_the_game_is_over_or_not(tmp_path: Path) -> None:
    path = archived(tmp_path, [_of_teams(event) for event in made_up_run(updates=3)])
    states = {}
    for opponent in ("ckpt-partner-000001", "random", "ckpt-000003"):
        for state in ("finished", "in-flight", "abandoned"):
            found = find_games(path, split="train", state=state, model="ckpt-000003", opponent=opponent)
            states[opponent, state] = len(found.rows)
    over = find_games(path, split="train", state="finished", model="ckpt-000002", opponent="random")
    assert len(over.rows) == 4
    # In the game in flight policy 3 plays seat 0; in the abandoned one seats 2 and 3, against the other team.
    assert {key: count for key, count in states.items() if count} == {
        ("random", "in-flight"): 1,
        ("random", "abandoned"): 1,
        ("ckpt-partner-000001", "abandoned"): 1,
    }


@pytest.mark.parametrize("sort", ["latest", "earliest", "tokens"])
@pytest.mark.parametrize("offset", [0, 3])
def test_no_games_may_be_asked_for(data: Path, sort: Sort, offset: int) -> None:
    assert find_games(data / "archive.duckdb", sort=sort, limit=0, offset=offset).rows == []
