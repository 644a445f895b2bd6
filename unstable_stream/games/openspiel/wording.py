"""Word what a player knows, and name the moves.

The text is a function of the player's information state: players who know the same are shown the same. A game
without a wording of its own shows OpenSpiel's string, one field a line.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

_CARDS: Final = "JQK"
_FIELD: Final = re.compile(r"\[([^\[\]:]+): ([^\[\]]*)\]")
_BRACKETS: Final = re.compile(r"\[([^\[\]\n]+)\]")


def information_state(state: Any) -> str:
    """Return OpenSpiel's string of what the player to move knows; it has no types."""
    kind = state.get_game().get_type()
    given = state.information_state_string if kind.provides_information_state_string else None
    text: str = (given or state.observation_string)()
    return text


def move_names(state: Any) -> dict[int, str]:
    """Return the name of each legal move by its number, in order of the numbers; no name occurs twice.

    A name that could not stand in brackets, or that two moves have, is replaced by the number.
    """
    player = state.current_player()
    names = {move: _plain(state.action_to_string(player, move)) for move in state.legal_actions()}
    given = list(names.values())
    for move, name in names.items():
        if _BRACKETS.fullmatch(f"[{name}]") is None or given.count(name) > 1:
            names[move] = str(move)
    return names


def observation(state: Any) -> str:
    """Return the text that the player to move is shown. Its last line lists the legal moves by name."""
    game = state.get_game()
    name = game.get_type().short_name
    rules, words = _WORDINGS.get(name, ("", _in_general))
    names = move_names(state)
    numbers = "; ".join(f"{move} = {called}" for move, called in names.items())
    listed = ", ".join(f"'[{called}]'" for called in names.values())
    return "\n".join(
        [
            f"Game: {name}. You are player {state.current_player()}.",
            *([rules.format(**game.get_parameters())] if rules else []),
            *words(state),
            f"Numbers of the moves: {numbers}",
            f"Available Moves: {listed}",
        ]
    )


def read_move(names: Mapping[int, str], answer: str) -> int | None:
    """Return the move that an answer names, ``[Bet]``, ``bet`` or ``[1]``; ``None``: it names none.

    ``names``: those of the legal moves, by number.
    """
    found = _BRACKETS.findall(answer)
    said = _plain(found[-1] if found else answer).casefold()
    for move, name in names.items():
        if name.casefold() == said:
            return move
    return int(said) if said.isascii() and said.isdecimal() and int(said) in names else None


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(";").strip()


# -- wordings of single games -------------------------------------------------------------------------


def _in_general(state: Any) -> list[str]:
    kind = state.get_game().get_type()
    seen = kind.information.name == "PERFECT_INFORMATION" and kind.provides_observation_string
    text = state.observation_string() if seen else information_state(state)
    fields = _FIELD.findall(text)
    if fields and _FIELD.sub("", text).strip() == "":
        return [f"{name}: {value or 'none'}" for name, value in fields]
    return ["What you know:", text.strip() or "nothing"]


def _kuhn(state: Any) -> list[str]:
    known = information_state(state)
    played = ["Bet" if move == "b" else "Pass" for move in known[1:]]
    return [f"Your card: {_CARDS[int(known[0])]}", f"Moves so far: {_listed(played)}"]


def _leduc(state: Any) -> list[str]:
    known = dict(_FIELD.findall(information_state(state)))
    suits = 1 if state.get_game().get_parameters()["suit_isomorphism"] else 2

    def card(number: str) -> str:
        rank, suit = divmod(int(number), suits)
        return f"{_CARDS[rank]}{suit + 1 if suits > 1 else ''}"

    rounds = [[_LEDUC_MOVES[int(move)] for move in known[f"Round{n}"].split()] for n in (1, 2)]
    return [
        f"Your card: {card(known['Private'])}",
        f"Public card: {card(known['Public']) if 'Public' in known else 'none yet'}",
        f"Moves of round 1: {_listed(rounds[0])}",
        f"Moves of round 2: {_listed(rounds[1])}",
        f"Pot: {known['Pot']}",
    ]


def _liars_dice(state: Any) -> list[str]:
    dice, *bids = information_state(state).split()
    return [f"Your dice: {', '.join(dice)}", f"Bids so far: {_listed(bids)}"]


def _nim(state: Any) -> list[str]:
    piles = state.observation_string().partition(": ")[2].split()
    loses = state.get_game().get_parameters()["is_misere"]
    return [
        f"Who takes the last one {'loses' if loses else 'wins'}.",
        *(f"pile {number}: {size}" for number, size in enumerate(piles, start=1)),
    ]


def _listed(words: list[str]) -> str:
    return ", ".join(words) or "none"


_LEDUC_MOVES: Final = ("Fold", "Call", "Raise")

_KUHN_RULES: Final = (
    "Each player puts 1 chip into the pot and gets one of the cards J, Q, K. Bet adds 1 more; Pass puts in "
    "none, and gives the pot away if the other has bet. Otherwise the higher card wins."
)
_LEDUC_RULES: Final = (
    "Each player puts 1 chip into the pot and gets one of six cards: two of each J, Q, K. There are two "
    "rounds with at most two raises each, of 2 chips in the first and 4 in the second, before which a public "
    "card is shown. Who has its rank wins, otherwise the higher card."
)
_LIARS_DICE_RULES: Final = (
    "Each player rolls {numdice} dice of {dice_sides} sides in secret. A bid 2-3 says that all dice together "
    "show 3 at least twice; the highest side counts as any. Bid higher, or say Liar: then the bid is "
    "checked, and who was wrong loses."
)
_NIM_RULES: Final = "Take any number of objects from one pile."

_WORDINGS: Final[Mapping[str, tuple[str, Callable[[Any], list[str]]]]] = {
    "kuhn_poker": (_KUHN_RULES, _kuhn),
    "leduc_poker": (_LEDUC_RULES, _leduc),
    "liars_dice": (_LIARS_DICE_RULES, _liars_dice),
    "nim": (_NIM_RULES, _nim),
}
"""The rules, with the game's parameters in braces, and the words for what a player knows; by game."""
