"""A disguised game is the same game: whole games are walked, and players who know it play it alike."""

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from unstable_stream.errors import ConfigError, GameError
from unstable_stream.games.disguises.game import DisguisedGame
from unstable_stream.games.environments import Environment, make_environment
from unstable_stream.games.isolation import PrivateRandomness
from unstable_stream.games.opponents.legal_moves import listed_moves, nim_moves
from unstable_stream.games.opponents.scripted import scripted_names, scripted_player
from unstable_stream.games.players import TurnContext
from unstable_stream.games.templates import get_template

pytestmark = pytest.mark.longer

# TicTacToe has 4,520 positions in which a move is to be made, and 16,167 moves from these; Nim with piles of
# 3, 4 and 5 has 230 and 1,356.
_WALKED = {
    ("TicTacToe-v0-train", "1"): (4520, 16167),
    ("TicTacToe-v0-train", "board-5"): (4520, 16167),
    ("Nim-v0-train", "2"): (230, 1356),
    ("openspiel:nim(pile_sizes='1;2;3')", "3"): None,
    ("openspiel:kuhn_poker", "6"): None,
    ("openspiel:leduc_poker", "2"): None,
}


def _walk(
    env_id: str, plain: Any, disguised: DisguisedGame, told: dict[tuple[int, str], str]
) -> Iterator[int]:
    """Make every move in both games, from each position once; yield 1 for each move."""
    seat, text = plain.get_observation()
    assert disguised.get_observation()[0] == seat
    assert disguised.plain_turn().observation == text
    # The past changes nothing in the games that show it.
    position = seat, text.partition("Current")[2] or text
    if position in told:
        return
    told[position] = disguised.get_observation()[1]
    legal = nim_moves(text) if env_id.startswith("Nim") else listed_moves(text)
    named = {move: disguised.plain_turn().disguised(move) for move in legal}
    assert len(set(named.values())) == len(legal)
    assert sorted(listed_moves(told[position])) == sorted(named.values()), "the same legal moves, one to one"
    for move, as_told in named.items():
        one, other = copy.deepcopy(plain), copy.deepcopy(disguised)
        done, _ = one.step(action=move)
        assert other.step(as_told)[0] == done
        yield 1
        if done:
            assert one.close()[0] == other.close()[0], "the same results"
        else:
            yield from _walk(env_id, one, other, told)


@pytest.mark.parametrize(("env_id", "number"), list(_WALKED))
def test_disguised_game_has_the_same_positions_moves_and_results(env_id: str, number: str) -> None:
    told: dict[tuple[int, str], str] = {}
    moves = 0
    for seed in range(60 if "poker" in env_id else 1):  # all deals of Kuhn poker
        with PrivateRandomness(seed):
            plain, disguised = make_environment(env_id), make_environment(f"disguise:{number}:{env_id}")
            plain.reset(num_players=2, seed=seed)
            disguised.reset(num_players=2, seed=seed)
            # Of one deal: who knows the same in another deal may come to other results.
            walked: dict[tuple[int, str], str] = {}
            moves += sum(_walk(env_id, plain, disguised, walked))
            assert all(told.get(position, words) == words for position, words in walked.items())
            told |= walked
    assert len(set(told.values())) == len(told) > 10, "what is known otherwise is told otherwise"
    if (expected := _WALKED[env_id, number]) is not None:
        assert (len(told), moves) == expected


def _played(env_id: str, player: str, seed: int) -> tuple[list[tuple[int, str]], list[str], Any]:
    """Return the moves, the texts and the rewards of a game."""
    env = Environment(env_id)
    env.reset(2, seed)
    chooser = scripted_player(player, env_id)
    moves: list[tuple[int, str]] = []
    texts = []
    while not env.done:
        seen, turn = env.observe(), len(moves)
        context = TurnContext(env_id, seen.seat, 2, turn, turn, turn, seen.text, env.accepts, seen.plain)
        move = asyncio.run(chooser.move(context)).action
        assert env.accepts(move)
        texts.append(seen.text)
        moves.append((seen.seat, move))
        assert env.step(move).valid
    return moves, texts, env.close().rewards


_GAMES = [
    "TicTacToe-v0-train",
    "SimpleTak-v0-train",
    "SimpleTak-v0-medium-train",
    "ConnectFour-v0-large-train",
    "Nim-v0-train",
    "openspiel:kuhn_poker",
    "openspiel:leduc_poker",
    "openspiel:leduc_poker(suit_isomorphism=True)",
    "openspiel:nim",
]


@pytest.mark.parametrize("env_id", _GAMES)
def test_players_who_know_the_game_play_it_alike_in_all_disguises(env_id: str) -> None:
    for player in {"random-legal", scripted_names(env_id)[-1]} - {"minimax-4"}:
        plain_moves, plain_texts, plain_rewards = _played(env_id, player, 7)
        assert _played(f"disguise:0:{env_id}", player, 7) == (plain_moves, plain_texts, plain_rewards)
        seen = set()
        for number in range(1, 9):
            moves, texts, rewards = _played(f"disguise:{number}:{env_id}", player, 7)
            assert (moves, texts, rewards) == _played(f"disguise:{number}:{env_id}", player, 7)
            assert rewards == plain_rewards
            assert [seat for seat, _ in moves] == [seat for seat, _ in plain_moves]
            assert not {env_id.split("-")[0], "Player", "player"} & set(texts[0].split())
            seen.add(texts[0])
        assert len(seen) >= 7, "they differ"


def test_numbers_are_drawn_by_the_seed_of_a_game() -> None:
    first = [_played("disguise:1-3:TicTacToe-v0-train", "random-legal", seed)[1][0] for seed in range(30)]
    alone = {
        _played(f"disguise:{number}:TicTacToe-v0-train", "random-legal", 0)[1][0] for number in (1, 2, 3)
    }
    assert set(first) == alone


@pytest.mark.parametrize("allowed", [0, 1])
def test_the_words_of_the_game_are_no_moves_in_a_disguise(allowed: int) -> None:
    env = Environment("disguise:3:TicTacToe-v0-train", invalid_moves_allowed=allowed)
    env.reset(2, 1)
    before = env.observe().text
    assert not env.accepts("[4]")
    result = env.step("I take [4], the centre")
    assert (result.valid, result.done) == (False, not allowed)
    if allowed:
        assert env.observe().text == before
        plain = env.observe().plain
        assert plain is not None
        assert env.step(f"I take {plain.disguised('[4]').upper()} now").valid
        assert " 3 | O | 5" in (env.observe().plain or plain).observation


@pytest.mark.parametrize(
    ("env_id", "template"),
    [("TicTacToe-v0-train", "tictactoe-board"), ("SimpleTak-v0-train", "simpletak-board")],
)
def test_board_templates_read_disguises_of_the_board_alone(env_id: str, template: str) -> None:
    env = Environment(f"disguise:board-4:{env_id}")
    env.reset(2, 1)
    plain = env.observe().plain
    assert plain is not None
    env.step(plain.disguised("[0]"))
    prompt = get_template(template).format(env.observe().text)
    numbers = get_template(template).format((env.observe().plain or plain).observation).split()
    assert sorted(prompt.split()) != numbers
    gone = plain.disguised("[0]").strip("[]")
    assert sorted([*prompt.split(), gone]) == sorted([*numbers, "0"]), "the same marks, other numbers"
    env = Environment(f"disguise:4:{env_id}")
    env.reset(2, 1)
    with pytest.raises(GameError, match=r"no .x. .* board with an own symbol"):
        get_template(template).format(env.observe().text)


@pytest.mark.parametrize(
    ("env_id", "says"),
    [
        (
            "disguise:3:FrozenLake-v0-train",
            "has no disguises; those that have: TicTacToe-v0-train, SimpleTak",
        ),
        ("disguise:3:TicTacToe-v0", "has no disguises"),
        ("disguise:3:ConnectFour-v0-blind-train", "has no disguises"),
        ("disguise:board-3:openspiel:kuhn_poker", "the board of openspiel:kuhn_poker has no disguises"),
        ("disguise:TicTacToe-v0-train", "expected disguise:NUMBERS:ENV"),
        ("disguise:3-1:TicTacToe-v0-train", "expected disguise:NUMBERS:ENV"),
    ],
)
def test_what_cannot_be_disguised_is_refused_in_one_line(env_id: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        Environment(env_id).reset(2, 0)
    assert "\n" not in str(error.value)
