"""Games of OpenSpiel as environments: seeds, moves, invalid moves, wording, and what cannot be played."""

import random
import sys
from typing import Any

import pyspiel
import pytest

from tests.games.builders import begin, make_started, play, players_of, shown_again
from tests.games.test_scripted import match
from unstable_stream.errors import ConfigError, GameError
from unstable_stream.extensions import KINDS, Reference, confined, is_extension
from unstable_stream.games.environments import Environment, check_environment
from unstable_stream.games.openspiel import games
from unstable_stream.games.openspiel.wording import information_state, move_names, observation, read_move
from unstable_stream.games.opponents.scripted import scripted_names
from unstable_stream.games.templates import get_template
from unstable_stream.ui.cli.options import environment

KUHN = "openspiel:kuhn_poker"
LEDUC = "openspiel:leduc_poker"
DICE = "openspiel:liars_dice(dice_sides=3)"
NIM = "openspiel:nim(pile_sizes='1;2;3')"
ENVIRONMENTS = (KUHN, LEDUC, DICE, NIM, "openspiel:tic_tac_toe", "openspiel:pig(winscore=20)")


def states(game: Any) -> list[Any]:
    """Return one position of each information state of a game."""
    found: dict[str, Any] = {}
    left = [game.new_initial_state()]
    while left:
        state = left.pop()
        if state.is_terminal():
            continue
        if not state.is_chance_node():
            found.setdefault(information_state(state), state)
        left += [state.child(move) for move in state.legal_actions()]
    return list(found.values())


def by_state(name: str) -> dict[str, Any]:
    return {information_state(state): state for state in states(pyspiel.load_game(name))}


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
async def test_random_play_makes_no_invalid_move_and_every_seed_replays_equal(env_id: str) -> None:
    check_environment(env_id, 2)
    once = await match(env_id, ["random-legal"] * 2, 200)
    assert all(action.valid for outcome in once for action in outcome.actions)
    assert {outcome.reason for outcome in once} <= {"win", "draw"}
    assert once == await match(env_id, ["random-legal"] * 2, 200)
    for outcome in once[:20]:
        await shown_again(outcome)
    for outcome in await match(env_id, ["first-legal", "random-legal"], 20):
        assert outcome.invalid_seat is None


async def test_chance_is_drawn_from_the_seed_with_its_probabilities() -> None:
    cards = [_first_card(seed) for seed in range(600)]
    assert cards == [_first_card(seed) for seed in range(600)]
    # Three standard deviations of 600 draws of a third.
    assert all(abs(cards.count(card) - 200) < 35 for card in "JQK")


def _first_card(seed: int) -> str:
    return begin(KUHN, seed=seed).observe().text.partition("Your card: ")[2][0]


async def test_returns_are_the_rewards() -> None:
    outcome = (await play(make_started(KUHN, 2), players_of(["[Bet]"], ["[Bet]"]))).outcome
    assert sorted(seat.reward for seat in outcome.seats) == [-2.0, 2.0]
    assert outcome.reason == "win"
    assert outcome.reason_text in {f"player 0 got {n} and player 1 got {-n}" for n in (2, -2)}


@pytest.mark.parametrize("action", ["[Bet]", "bet", "[1]", " 1 ", "I say [pass], no, [BET]"])
def test_a_move_is_read_by_name_or_number(action: str) -> None:
    state = states(pyspiel.load_game("kuhn_poker"))[0]
    assert read_move(move_names(state), action) == 1


@pytest.mark.parametrize("action", ["[Call]", "[2]", "", "[-1]", "[01x]", "²"])
async def test_an_illegal_answer_is_an_invalid_move(action: str) -> None:
    game = begin(KUHN)
    result = game.step(action)
    assert result.done
    assert not result.valid
    assert "expected one of [Pass], [Bet]" in (result.invalid_reason or "")
    ended = game.close()
    assert ended.rewards == {0: -2.0, 1: 2.0}
    assert ended.invalid_seats == {0}


def test_invalid_moves_are_allowed_in_a_row_as_configured() -> None:
    game = begin(LEDUC, allowed=1)
    assert not game.step("[Fold]").done
    seen = game.observe()
    assert seen.seat == 0
    assert game.step("[Call]").valid
    assert game.step("[nonsense]").done is False
    assert game.step("[nonsense]").done
    assert game.close().rewards == {0: 13.0, 1: -13.0}


def test_a_game_that_is_not_over_has_no_rewards() -> None:
    game = begin(KUHN, seed=0)
    game.step("[Pass]")
    assert game.close().rewards is None


def test_the_wording_of_kuhn_and_leduc() -> None:
    kuhn = by_state("kuhn_poker")
    assert len(kuhn) == 12
    text = observation(kuhn["2pb"]).splitlines()
    assert text[0] == "Game: kuhn_poker. You are player 0."
    assert text[2:] == [
        "Your card: K",
        "Moves so far: Pass, Bet",
        "Numbers of the moves: 0 = Pass; 1 = Bet",
        "Available Moves: '[Pass]', '[Bet]'",
    ]
    known = "[Observer: 1][Private: 2][Round 2][Player: 1][Pot: 10][Money: 95 95][Public: 5]"
    assert observation(by_state("leduc_poker")[f"{known}[Round1: 2 2 1][Round2: 1]"]).splitlines()[2:7] == [
        "Your card: Q1",
        "Public card: K2",
        "Moves of round 1: Raise, Raise, Call",
        "Moves of round 2: Call",
        "Pot: 10",
    ]


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker", "liars_dice(dice_sides=3)", "tiny_hanabi"])
def test_who_knows_something_else_is_shown_something_else(name: str) -> None:
    every = states(pyspiel.load_game(name))
    assert len({observation(state) for state in every}) == len(every)
    for state in every:
        names = move_names(state)
        assert len(set(names.values())) == len(names)
        for move, called in names.items():
            assert read_move(names, f"[{called}]") == move


@pytest.mark.parametrize(
    ("name", "template", "different"),
    [
        ("kuhn_poker", "kuhn-board", 12),
        ("kuhn_poker", "kuhn-numbers", 12),
        ("leduc_poker", "leduc-board", 288),
        ("leduc_poker", "leduc-numbers", 288),
    ],
)
def test_boards_tell_all_but_the_suits(name: str, template: str, different: int) -> None:
    to_prompt = get_template(template).format
    prompts = {to_prompt(observation(state)) for state in states(pyspiel.load_game(name))}
    assert len(prompts) == different
    assert len({len(prompt.split()) for prompt in prompts}) == 1


def test_boards_checked_by_hand() -> None:
    kuhn = by_state("kuhn_poker")
    board = get_template("kuhn-board").format
    assert board(observation(kuhn["1"])) == "TicTacToe O\n0 1 X\nO X X\nX X X\nmove:"
    assert board(observation(kuhn["2pb"])) == "TicTacToe O\n0 1 X\nX O X\nO O X\nmove:"
    assert board(observation(kuhn["0b"])) == "TicTacToe X\n0 1 O\nX X O\nX X X\nmove:"
    numbers = get_template("kuhn-numbers").format
    assert numbers(observation(kuhn["1"])) == "TicTacToe O\n0 1 5\nX X 8\nX X X\nmove:"
    assert numbers(observation(kuhn["2pb"])) == "TicTacToe O\n0 1 6\nX X 11\nX X X\nmove:"
    leduc = by_state("leduc_poker")
    (raised,) = (
        key
        for key in leduc
        if "[Player: 0][Pot: 18][Money: 93 89][Public: 5][Round1: 2 1]" in key and "0][Private: 0]" in key
    )
    words = get_template("leduc-numbers").format(observation(leduc[raised]))
    assert words == "SimpleTak O\n0 1 X X\n4 X X 9\nX X 12 X\nX 14 X X\nmove:"
    with pytest.raises(GameError, match="use this template only for openspiel:leduc_poker"):
        get_template("leduc-board").format(observation(kuhn["1"]))


@pytest.mark.parametrize(
    ("env_id", "says"),
    [
        ("openspiel:kuhn_pokr", "has no game 'kuhn_pokr'; did you mean kuhn_poker"),
        ("openspiel:zzzz", "has no game 'zzzz'; it has kuhn_poker"),
        ("openspiel:kuhn_poker(cards=3)", "no parameter 'cards'; it has players"),
        ("openspiel:kuhn_poker(players=3)", "it is for 3 player"),
        ("openspiel:kuhn_poker(players='two')", r"OpenSpiel refused \{'players': 'two'\}"),
        ("openspiel:nfg_game", r"OpenSpiel refused \{\}: map::at"),
        ("openspiel:goofspiel", "its players move at the same time"),
        ("openspiel:", "has no game ''"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(env_id: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        begin(env_id)
    assert "\n" not in str(caught.value)


def test_another_number_of_players_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_players = 3; expected 2"):
        Environment(KUHN).reset(3, 0)


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    monkeypatch.setattr(games, "_pyspiel", games._pyspiel.__wrapped__)
    with pytest.raises(ConfigError, match=r"pip install 'unstable_stream\[openspiel\]'"):
        begin(KUHN)


def test_it_is_built_in_and_not_code_of_a_user() -> None:
    kind = KINDS["environment"]
    assert not is_extension(kind, Reference(KUHN))
    assert is_extension(kind, Reference("openspiels:kuhn_poker"))
    assert scripted_names(KUHN)[:2] == ("random-legal", "first-legal")
    with confined():
        begin(KUHN)


def test_an_id_with_a_template_on_the_command_line() -> None:
    assert environment("openspiel:kuhn_poker") == {"env_id": KUHN}
    assert environment("openspiel:kuhn_poker:chat") == {"env_id": KUHN, "template": "chat"}
    disguised = {"env_id": f"disguise:1-8:{KUHN}", "template": "chat"}
    assert environment(f"disguise:1-8:{KUHN}:chat") == disguised
    assert environment("TicTacToe-v0-train:chat") == {"env_id": "TicTacToe-v0-train", "template": "chat"}
    assert environment("TicTacToe-v0-train") == {"env_id": "TicTacToe-v0-train"}


def test_no_text_of_a_player_makes_reading_a_move_fail() -> None:
    state = states(pyspiel.load_game("leduc_poker"))[0]
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choice("[]0129 Calise²٣\n-") for _ in range(rng.randrange(12)))
        assert read_move(move_names(state), text) in {None, *state.legal_actions()}
