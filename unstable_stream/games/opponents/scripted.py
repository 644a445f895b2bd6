"""Play as a scripted opponent: it needs no model and no network, and it never changes.

Those that are known by name choose by the observation text and the turn's seed alone, like any player. Where
the text does not show what is legal, they try moves on a copy of the game and learn nothing from it but legal
or not (:mod:`~unstable_stream.games.opponents.grammars`). ``perfect`` is reserved for games that are solved;
``minimax-N`` looks N moves ahead. Any other is an extension: a function from observation (or
:class:`TurnContext`) to action text, or a class with ``move(turn)``, of which each game gets an instance of
its own.
"""

import inspect
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, TypeAlias

from unstable_stream.errors import ConfigError, GameError, did_you_mean
from unstable_stream.extensions import KINDS, Reference, build, entry_points_of
from unstable_stream.extensions.build import refuse
from unstable_stream.games.disguises.naming import plain_id
from unstable_stream.games.opponents import legal_moves, search
from unstable_stream.games.opponents.grammars import GRAMMARS, first_legal, random_legal
from unstable_stream.games.players import Move, Player, TurnContext

Candidates: TypeAlias = Callable[[TurnContext], list[str]]
"""The actions a strategy holds equally good."""

SCRIPTED_NAMES: Final = ("random-legal", "first-legal", "perfect", "minimax-2", "minimax-4")
"""All names; not every game has every one (:func:`scripted_names`)."""


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """Chooses among a strategy's candidates, by the turn's seed."""

    name: str
    candidates: Candidates

    async def move(self, turn: TurnContext) -> Move:
        """Decide. Raises :class:`~unstable_stream.errors.GameError` if the observation cannot be read."""
        moves = self.candidates(turn)
        return Move(moves[0] if len(moves) == 1 else random.Random(turn.seed).choice(moves))


def scripted_names(env_id: str) -> tuple[str, ...]:
    """Return the scripted players that can play ``env_id``; empty if none can."""
    return tuple(name for name in SCRIPTED_NAMES if name in _strategies(env_id))


def check_scripted(name: str, env_id: str) -> None:
    """Make sure a scripted player exists and can play an environment.

    Raises:
        ConfigError: no such player, or it cannot play this game; lists those that can.
    """
    if _is_own(name):
        _own_player(name)
        return
    if name not in SCRIPTED_NAMES:
        meant, known = did_you_mean(name, SCRIPTED_NAMES, after=" "), ", ".join(SCRIPTED_NAMES)
        raise ConfigError(
            f"unknown scripted player {name!r}; {meant}expected one of {known}, or an extension"
        )
    available = scripted_names(env_id)
    if not available:
        raise ConfigError(
            f"no scripted player can play {env_id!r}: its legal moves are neither listed nor tried. "
            f"Games that have them: {', '.join(sorted({*_GAMES, *GRAMMARS}))}. "
            f"Use a model or an endpoint as opponent."
        )
    if name not in available:
        raise ConfigError(
            f"scripted player {name!r} cannot play {env_id!r}; available: {', '.join(available)}"
        )


def scripted_player(name: str, env_id: str) -> Player:
    """Return the scripted player ``name`` for ``env_id``; raises as :func:`check_scripted`."""
    if (plain := plain_id(env_id)) != env_id:
        return _PlainPlayer(scripted_player(name, plain), plain)
    if _is_own(name):
        return _own_player(name)
    check_scripted(name, env_id)
    return ScriptedPlayer(name, _strategies(env_id)[name])


@dataclass(frozen=True, slots=True)
class _PlainPlayer:
    """Plays a disguised game as a player does who knows it: the same moves as without the disguise."""

    player: Player
    env_id: str
    """Without the disguise."""

    async def move(self, turn: TurnContext) -> Move:
        plain, accepts = turn.plain, turn.accepts
        if plain is None:
            raise GameError(f"{turn.env_id}: the turn does not say what it is without its disguise")
        tried = None if accepts is None else lambda action: accepts(plain.disguised(action))
        seen = replace(turn, env_id=self.env_id, observation=plain.observation, accepts=tried, plain=None)
        move = await self.player.move(seen)
        return replace(move, action=plain.disguised(move.action))


def _strategies(env_id: str) -> Mapping[str, Candidates]:
    env_id = plain_id(env_id)
    if Reference.parse(env_id, "env_id").names_code:  # an environment of the user's own may list its moves
        return {
            "random-legal": lambda turn: legal_moves.listed_moves(turn.observation),
            "first-legal": lambda turn: legal_moves.listed_moves(turn.observation)[:1],
        }
    base, _, variant = env_id.partition("-v0")
    game = _GAMES.get(base)
    if game is None or any(part in game.unplayable for part in variant.split("-")):
        grammar = GRAMMARS.get(base)
        if grammar is None:
            return {}
        return {"random-legal": random_legal(grammar), "first-legal": first_legal(grammar)}
    legal = game.legal
    strategies: dict[str, Candidates] = {
        "random-legal": lambda turn: legal(turn.observation),
        "first-legal": lambda turn: legal(turn.observation)[:1],
        **game.strong,
    }
    for part in variant.split("-"):
        for name in game.too_slow.get(part, ()):
            strategies.pop(name)
    return strategies


# -- players of the user's own ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OwnPlayer:
    """A player that an extension names, for one game."""

    name: str
    decide: Callable[..., object]
    shown: str
    """``turn`` if it is given the whole turn, ``observation`` if the text alone."""

    async def move(self, turn: TurnContext) -> Move:
        where = f"{turn.env_id}: opponent {self.name}, seat {turn.seat}, turn {turn.turn_index}"
        try:
            decided = self.decide(turn if self.shown == "turn" else turn.observation)
            if inspect.isawaitable(decided):
                decided = await decided
        except Exception as error:
            raise GameError(f"{where} failed: {type(error).__name__}: {error}") from error
        if isinstance(decided, Move):
            return decided
        if not isinstance(decided, str):
            raise GameError(f"{where} answered {decided!r}; expected the action as text")
        return Move(decided)


def _is_own(name: str) -> bool:
    if name in SCRIPTED_NAMES:
        return False
    reference = Reference.parse(name, "opponent")
    return reference.names_code or reference.target in entry_points_of(KINDS["opponent"])


def _own_player(name: str) -> Player:
    kind = KINDS["opponent"]
    found = build(kind, name, "opponent")
    decide = getattr(found, "move", found)
    reference = Reference.parse(name, "opponent")
    if not callable(decide):
        raise refuse(kind, reference, "opponent", f"is a {type(found).__name__}")
    try:
        signature = inspect.signature(decide)
        signature.bind("turn or observation")
    except (TypeError, ValueError) as error:
        raise refuse(kind, reference, "opponent", f"cannot be called with one argument: {error}") from error
    first = next(iter(signature.parameters.values()))
    given_text = first.annotation in (str, "str") or (
        first.annotation is inspect.Parameter.empty and first.name in ("observation", "text")
    )
    return _OwnPlayer(name, decide, "observation" if given_text else "turn")


# -- strong play ----------------------------------------------------------------------------------

_TICTACTOE_MARKS: Final = ("O", "X")
_TAK_STONES: Final = ("O", "X")
_CONNECT_FOUR_DISCS: Final = ("X", "O")


def _tictactoe_perfect(turn: TurnContext) -> list[str]:
    own, other = _masks(legal_moves.grid_cells(turn.observation), _TICTACTOE_MARKS[turn.seat])
    return [f"[{cell}]" for cell in search.tictactoe_best_moves(own, other)]


def _nim_perfect(turn: TurnContext) -> list[str]:
    best = search.nim_best_moves(legal_moves.nim_piles(turn.observation))
    return [f"[{pile} {quantity}]" for pile, quantity in best]


def _tak_minimax(depth: int) -> Candidates:
    def candidates(turn: TurnContext) -> list[str]:
        cells = legal_moves.grid_cells(turn.observation)
        own, other = _masks(cells, _TAK_STONES[turn.seat])
        board = _tak_board(round(len(cells) ** 0.5))
        return [f"[{bit.bit_length() - 1}]" for bit in _best_moves(board, own, other, depth)]

    return candidates


def _connect_four_minimax(depth: int) -> Candidates:
    def candidates(turn: TurnContext) -> list[str]:
        rows = legal_moves.connect_four_rows(turn.observation)
        board = _connect_four_board(len(rows), len(rows[0]))
        own = other = 0
        for height, row in enumerate(reversed(rows)):
            for column, disc in enumerate(row):
                if disc == _CONNECT_FOUR_DISCS[turn.seat]:
                    own |= board.bit(height, column)
                elif disc != ".":
                    other |= board.bit(height, column)
        return [f"[col {board.column(bit)}]" for bit in _best_moves(board, own, other, depth)]

    return candidates


def _masks(cells: list[str], own_symbol: str) -> tuple[int, int]:
    own = sum(1 << index for index, cell in enumerate(cells) if cell == own_symbol)
    taken = sum(1 << index for index, cell in enumerate(cells) if not re.fullmatch(r"\d+", cell))
    return own, taken & ~own


_best_moves = lru_cache(maxsize=1 << 14)(search.best_moves)
"""Games share their first positions, which are the dearest to search."""
_tak_board = lru_cache(maxsize=None)(search.TakBoard)
_connect_four_board = lru_cache(maxsize=None)(search.ConnectFourBoard)


# -- games ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Game:
    """The strategies for one family of environments (``SimpleTak`` for ``SimpleTak-v0-large-train``)."""

    legal: Callable[[str], list[str]]
    strong: Mapping[str, Candidates] = field(default_factory=dict)
    unplayable: frozenset[str] = frozenset()
    """Variants whose text does not show what the strategies need; their moves are tried."""
    too_slow: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Variant to the strong players that would need seconds for a move on its board."""


_GAMES: Final[Mapping[str, _Game]] = {
    "TicTacToe": _Game(legal_moves.listed_moves, {"perfect": _tictactoe_perfect}),
    "Nim": _Game(legal_moves.nim_moves, {"perfect": _nim_perfect}),
    "ConnectFour": _Game(
        legal_moves.connect_four_columns,
        {"minimax-2": _connect_four_minimax(2), "minimax-4": _connect_four_minimax(4)},
        unplayable=frozenset({"blind"}),
    ),
    "SimpleTak": _Game(
        legal_moves.listed_moves,
        {"minimax-2": _tak_minimax(2), "minimax-4": _tak_minimax(4)},
        too_slow={"medium": ("minimax-4",), "large": ("minimax-4",), "extreme": ("minimax-4",)},
    ),
    "FifteenPuzzle": _Game(legal_moves.listed_moves),
    "KuhnPoker": _Game(legal_moves.listed_moves),
    "Othello": _Game(legal_moves.othello_moves, unplayable=frozenset({"hard"})),
    "PigDice": _Game(legal_moves.listed_moves),
    "ThreePlayerTicTacToe": _Game(legal_moves.listed_moves),
    "WildTicTacToe": _Game(legal_moves.listed_moves),
}
