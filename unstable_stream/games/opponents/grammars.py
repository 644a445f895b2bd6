"""Find a legal move by trying: for games whose text does not list what is legal.

A game's *grammar* names actions that are well formed, in kinds: to bid, to call, to fold. The environment is
asked about one after the other, on a copy, until it accepts one. Both orders, of the kinds and of the actions
of a kind, come from the turn's seed alone, so each legal action of the kind is as likely as any other, and
what the environment hides has no say.

One function per grammar, shared by the games that have it. To add a game: write its actions as :data:`Kinds`,
too many rather than too few, and enter it in :data:`GRAMMARS`; ``tests/games/test_chance_games.py`` plays it.
"""

import random
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, product
from typing import Final, TypeAlias

from unstable_stream.errors import GameError
from unstable_stream.games.opponents import legal_moves
from unstable_stream.games.players import TurnContext

Kinds: TypeAlias = list[list[str]]
"""Well-formed actions, by kind of move."""

Grammar: TypeAlias = Callable[[TurnContext, random.Random], Kinds]
"""Names what may be tried now; draws, if it must, from the generator it is given."""

MAX_TRIES: Final = 1000
"""Actions tried in one turn. A try takes a tenth of a millisecond to a few, so a turn at most seconds."""


def random_legal(grammar: Grammar) -> Callable[[TurnContext], list[str]]:
    """Return the strategy: a legal action of a kind, both by the turn's seed."""

    def candidates(turn: TurnContext) -> list[str]:
        chance = random.Random(turn.seed)
        kinds = [chance.sample(kind, len(kind)) for kind in grammar(turn, chance)]
        chance.shuffle(kinds)
        return [_first_accepted(turn, kinds)]

    return candidates


def first_legal(grammar: Grammar) -> Callable[[TurnContext], list[str]]:
    """Return the strategy: the first legal action in the grammar's order."""
    return lambda turn: [_first_accepted(turn, grammar(turn, random.Random(0)))]


def _first_accepted(turn: TurnContext, kinds: Kinds) -> str:
    """Return the first action that the environment accepts.

    If it accepts none of them, the first: what follows from that is the environment's rule for a player who
    cannot move.

    Raises:
        GameError: the turn belongs to no game, or there is nothing to try.
    """
    if turn.accepts is None:
        raise GameError(f"{turn.env_id}: a legal move is found by trying, so the turn must have `accepts`")
    tried = [action for kind in kinds for action in kind][:MAX_TRIES]
    if not tried:
        raise GameError(f"{turn.env_id}: expected a move to try, found none in {turn.observation[-300:]!r}")
    return next(filter(turn.accepts, tried), tried[0])


# -- boards: moves between squares, and cells to mark ----------------------------------------------------

_FILES: Final = "abcdefghij"
_RANK: Final = re.compile(r"^ *(\d+) \|(.*)$", re.MULTILINE)
_SIDES: Final = [(1, 0), (-1, 0), (0, 1), (0, -1)]
_AROUND: Final = [step for step in product((-1, 0, 1), repeat=2) if step != (0, 0)]


def listed(turn: TurnContext, _: random.Random) -> Kinds:
    """Return the moves that the text lists; tried all the same, because some lists are wrong.

    Kinds are told apart by the first word: ``[draw]``, ``[discard 8♣ 0]``.
    """
    kinds: dict[str, list[str]] = {}
    for move in legal_moves.listed_moves(turn.observation):
        words = move.strip("[]").split()
        kinds.setdefault(words[0] if words[0].islower() and words[0].isalpha() else "", []).append(move)
    return list(kinds.values())


def occupied_squares(turn: TurnContext) -> dict[tuple[int, int], str]:
    """Return ``(file, rank)`` to the piece on it, both from 0, of the last board with numbered ranks."""
    rows = _RANK.findall(turn.observation)
    size = max((int(rank) for rank, _ in rows), default=0)
    pieces = {}
    for rank, row in rows[-size:] if size else []:
        cells = row.split("|")[:size] if "|" in row else row.split()
        for file, cell in enumerate(cells):
            if cell.strip() not in ("", "."):
                pieces[file, int(rank) - 1] = cell.strip()
    return pieces


def piece_moves(own: str, steps: list[tuple[int, int]], form: str) -> Grammar:
    """Return the grammar: a piece (``own[seat]``) goes by one of ``steps``, ``(files, ranks)``.

    It stays on the board and off its own side's squares.
    """

    def grammar(turn: TurnContext, _: random.Random) -> Kinds:
        pieces = occupied_squares(turn)
        mine = {square for square, piece in pieces.items() if piece == own[turn.seat]}
        size = max((int(rank) for rank, _ in _RANK.findall(turn.observation)), default=len(_FILES))
        moves = [
            form.format(_FILES[file], rank + 1, _FILES[file + right], rank + up + 1)
            for file, rank in pieces
            if (file, rank) in mine
            for right, up in steps
            if 0 <= file + right < size and 0 <= rank + up < size and (file + right, rank + up) not in mine
        ]
        return [moves]

    return grammar


def _lines(longest: int) -> list[tuple[int, int]]:
    return [(right * n, up * n) for right, up in _AROUND for n in range(1, longest + 1)]


def torpedoes(turn: TurnContext, _: random.Random) -> Kinds:
    """Return the squares not fired at: the ``~`` of the right one of the two last boards."""
    rows = re.findall(r"^([A-Z])  .* \1   (\S.*)$", turn.observation, re.MULTILINE)
    size = ord(rows[-1][0]) - ord("A") + 1 if rows else 0
    cells = [
        f"[{letter}{column}]"
        for letter, row in rows[-size:]
        for column, cell in enumerate(row.split())
        if cell == "~"
    ]
    return [cells or [f"[{chr(ord('A') + row)}{column}]" for row, column in product(range(20), range(20))]]


def _cells(
    turn: TurnContext, row: str, size: int, separator: str | None = None
) -> tuple[int, dict[tuple[int, int], str]]:
    """Return the size, and the cells by row and column, of the last board whose rows begin with numbers.

    ``row`` is the pattern of one row: its number, and its cells; ``size`` counts where no board is shown.
    """
    rows = re.findall(row, turn.observation, re.MULTILINE)
    size = int(rows[-1][0]) + 1 if rows else size
    return size, {
        (int(number), column): cell.strip()
        for number, line in rows[-size:]
        for column, cell in enumerate(line.split(separator))
    }


def card_pairs(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return pairs of cards that lie face down (``.``), at most 200 of them."""
    size, cells = _cells(turn, r"^(\d+) ([.\w](?: [.\w])*) *$", 4)
    hidden = [square for square, cell in cells.items() if cell == "."]
    pairs = list(combinations(hidden or list(product(range(size), range(size))), 2))
    return [[f"[{a} {b} {c} {d}]" for (a, b), (c, d) in chance.sample(pairs, min(200, len(pairs)))]]


def othello_cells(turn: TurnContext, _: random.Random) -> Kinds:
    """Return all empty cells, and ``[skip]`` for who has no move."""
    cells = _cells(turn, r"^ ?(\d+)\|(.*)\|$", 8, "|")[1]
    free = [square for square, cell in cells.items() if cell == "."] or product(range(8), repeat=2)
    return [[f"[{row}, {column}]" for row, column in free], ["[skip]"]]


def tak_moves(turn: TurnContext, _: random.Random) -> Kinds:
    """Return placements of each sort of stone, and moves of one stone to a neighbouring square."""
    size, board = _cells(turn, r"^ +(\d+) \|(.*)\|$", 4, "|")
    cells = {square: cell for square, cell in board.items() if cell}
    free = [square for square in product(range(size), range(size)) if square not in cells]
    places = [f"[place () {{({r},{c}): [{sort}{turn.seat}]}}]" for sort in "FWC" for r, c in free]
    moves = [
        f"[move ({row},{column}) {{({row + down},{column + right}): [{stone}]}}]"
        for (row, column), cell in cells.items()
        for stone in sorted(set(re.findall(rf"[FWC]{turn.seat}", cell)))
        for down, right in _SIDES
    ]
    return [places, moves]


def santorini_moves(turn: TurnContext, _: random.Random) -> Kinds:
    """Return worker, from, to and building site, of the board: the list is right at first only."""
    rows = re.findall(r"^([A-E]) │(.*)│ [A-E]$", turn.observation, re.MULTILINE)[-5:]
    moves = []
    for row, (_, line) in enumerate(rows):
        for column, cell in enumerate(line.split("│")):
            worker = cell.split()[-1]
            if worker.startswith("NWG"[turn.seat]):
                moves += [
                    f"[{worker}{_square(row, column)}{_square(*to)}{_square(*site)}]"
                    for to in _neighbours((row, column))
                    for site in _neighbours(to)
                ]
    return [moves]


def _neighbours(square: tuple[int, int]) -> list[tuple[int, int]]:
    row, column = square
    near = [(row + down, column + right) for down, right in _AROUND]
    return [(r, c) for r, c in near if r in range(5) and c in range(5)]


def _square(row: int, column: int) -> str:
    return f"{'ABCDE'[row]}{column + 1}"


_STEPS_FORWARD: Final = [(right, up) for up in (1, -1) for right in (-1, 0, 1)]


# -- choices that hardly change: hands, directions, numbers, coins, cards, dice and chips ----------------


def _one_of(*words: str | Iterable[object]) -> Grammar:
    """Return the grammar ``[WORD]``, with a kind for each argument: a word, or many."""
    kinds = [[f"[{word}]" for word in ([kind] if isinstance(kind, str) else kind)] for kind in words]
    return lambda turn, _: kinds


def chopsticks(turn: TurnContext, _: random.Random) -> Kinds:
    """Return attacks of one hand on another, and splits."""
    attacks = [f"[attack {own} {other}]" for own, other in product(range(2), repeat=2)]
    return [attacks, [f"[split {left} {right}]" for left, right in product(range(9), repeat=2)]]


def allocations(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return five ways to spread all units over the fields: ``[A4 B2 C2]``."""
    fields = re.findall(r"Available fields: ([A-Z](?:, [A-Z])*)", turn.observation)
    units = re.findall(r"Units to allocate: (\d+)", turn.observation)
    names = fields[-1].split(", ") if fields else ["A", "B", "C"]
    return [[_spread(names, int(units[-1]) if units else 20, chance) for _ in range(5)]]


def _spread(names: list[str], units: int, chance: random.Random) -> str:
    cuts = sorted(chance.randint(0, units) for _ in names[1:])
    shares = [after - before for before, after in zip([0, *cuts], [*cuts, units], strict=True)]
    return f"[{' '.join(f'{name}{share}' for name, share in zip(names, shares, strict=True))}]"


def _betting(amounts: Iterable[int]) -> Grammar:
    sizes = list(amounts)
    return _one_of("check", "call", "fold", [f"bet {n}" for n in sizes], [f"raise {n}" for n in sizes])


_FACES: Final = ["A", *range(2, 11), "J", "Q", "K"]
# Sorted by quantity. A bid beyond all dice is legal; that there is always a call keeps the list short.
_BIDS: Final = [f"Bid: {quantity}, {face}" for quantity, face in product(range(1, 13), range(1, 7))]
_DIRECTIONS: Final = _one_of(("up", "down", "left", "right"))


# -- talk and bargaining: what is said is one fixed sentence, because any text is legal there ------------

_SAID: Final = "Let us see what happens."
_RESOURCES: Final = ("Wheat", "Wood", "Sheep", "Brick", "Ore")
# Everyday words, so that a clue is made of something; one of them may be the word that is taboo.
_WORDS: Final = ("house", "river", "music", "winter", "bread", "horse", "garden", "letter", "star", "stone")


def spoken(*words: str) -> Grammar:
    """Return the grammar: say something, or choose one of the words."""
    return lambda turn, _: [[_SAID], [f"[{word}]" for word in words]]


def whispered(*words: str) -> Grammar:
    """Return :func:`spoken` where what others may read stands in braces."""
    return lambda turn, _: [[f"{{{_SAID}}}"], [f"[{word}]" for word in words]]


def three_prisoners(turn: TurnContext, _: random.Random) -> Kinds:
    """Return talk, and a choice towards each of the others: ``[1 cooperate] [2 defect]``."""
    others = [seat for seat in range(turn.num_players) if seat != turn.seat]
    choices = product(("cooperate", "defect"), repeat=len(others))
    decided = [" ".join(f"[{o} {c}]" for o, c in zip(others, choice, strict=True)) for choice in choices]
    return [[_SAID], decided]


def trades(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return accept, deny, and forty offers of one resource for another."""
    return [["[Accept]"], ["[Deny]"], _offers(chance)]


def _offers(chance: random.Random) -> list[str]:
    offers = []
    for _ in range(40):
        given, wanted = chance.sample(_RESOURCES, 2)
        offers.append(f"[Offer: {chance.randint(1, 4)} {given} -> {chance.randint(1, 4)} {wanted}]")
    return offers


def settlers(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return the numbers of listed moves and of players to negotiate with, and what negotiators say."""
    listed = re.findall(
        r"^'\[(\d+)\]'\t", turn.observation[turn.observation.rfind("Viable moves") :], re.MULTILINE
    )
    return [
        [f"[{number}]" for number in listed],
        [f"[{seat}]" for seat in range(turn.num_players) if seat != turn.seat],
        ["[done]"],
        ["[accept]"],
        ["[deny]"],
        _offers(chance),
    ]


def job_offers(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return accept, reject, and ten proposals of a letter for each of eight issues."""
    proposals = ["".join(chance.choices("ABCDE", k=8)) for _ in range(10)]
    return [["[Accept]"], ["[Reject]"], [f"This is fair. [Propose] {letters}" for letters in proposals]]


def two_dollars(turn: TurnContext, _: random.Random) -> Kinds:
    """Return accept, reject, and how many cents of the two dollars one may ask for."""
    shares = [f"This is fair. [Propose] ${cents / 100:.2f}" for cents in range(0, 201, 5)]
    return [["I agree. [Accept]"], ["No. [Reject]"], shares]


def sealed_bids(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return talk, and bids on each item once the bidding has begun."""
    if "entering the bidding phase" not in turn.observation:
        return [[_SAID]]
    items = [int(item) for item in re.findall(r"^- Item (\d+):", turn.observation, re.MULTILINE)] or [0]
    capital = [int(coins) for coins in re.findall(r"You have (\d+) coins", turn.observation)] or [100]
    most = max(1, capital[0] // len(items))
    return [[" ".join(f"[Bid on Item {item}: {chance.randint(1, most)}]" for item in items)]]


def votes(turn: TurnContext, _: random.Random) -> Kinds:
    """Return talk, and a vote on each player."""
    return [[_SAID], [f"[{seat}]" for seat in range(turn.num_players)]]


GRAMMARS: Final[Mapping[str, Grammar]] = {
    "Alquerque": piece_moves("RB", _lines(2), "[{}{} {}{}]"),
    "Battleship": torpedoes,
    "Breakthrough": piece_moves("WB", _STEPS_FORWARD, "[{}{}{}{}]"),
    "ConnectFour": lambda turn, _: [[f"[col {column}]" for column in range(15)]],
    "Crusade": listed,
    "LinesOfAction": piece_moves("OX", _lines(7), "[{}{}{}{}]"),
    "MemoryGame": card_pairs,
    "Othello": othello_cells,
    "QuantumTicTacToe": lambda turn, _: [[f"[{a},{b}]" for a, b in combinations(range(9), 2)]],
    "SantoriniBaseFixed": santorini_moves,
    "Stratego": listed,
    "Tak": tak_moves,
    "UltimateTicTacToe": lambda turn, _: [[f"[{a} {b}]" for a, b in product(range(9), repeat=2)]],
    "Chopsticks": chopsticks,
    "ColonelBlotto": allocations,
    "IteratedMatchingPennies": _one_of(("heads", "tails")),
    "IteratedRockPaperScissors": _one_of(("rock", "paper", "scissors")),
    "IteratedTwoThirdsAverage": _one_of(range(101)),
    "IteratedUltimatumGame": _one_of("Accept", "Reject", [f"Offer: ${amount}" for amount in range(101)]),
    "Snake": _DIRECTIONS,
    "Surround": _DIRECTIONS,
    "Briscola": _one_of([f"play {card}" for card in range(1, 4)]),
    "GameOfPureStrategy": _one_of(_FACES),
    "GermanWhist": _one_of([f"play {card}" for card in range(1, 14)]),
    "Golf": _one_of(
        "draw", "take", "discard", [f"swap {row} {column}" for row, column in product(range(1, 9), repeat=2)]
    ),
    "HighSociety": _one_of(range(1, 12)),
    "IndianPoker": _betting((1, 2, 3, 5, 10)),
    "LiarsDice": _one_of("Call", _BIDS),
    "Poker": _betting((20, 40, 60, 100, 200)),
    "SpiteAndMalice": listed,
    "ThreePlayerGOPS": _one_of(_FACES),
    "IteratedPrisonersDilemma": spoken("Cooperate", "Defect"),
    "MarketEntryGame": whispered("E", "S"),
    "NewRecruit": job_offers,
    "PublicGoodsGame": whispered(*map(str, range(21))),
    "SecretMafia": votes,
    "SettlersOfCatan": settlers,
    "SimpleBlindAuction": sealed_bids,
    "SimpleNegotiation": trades,
    "Taboo": spoken(*_WORDS, "..."),  # some cards forbid the empty word, and so all others
    "ThreePlayerIPD": three_prisoners,
    "TruthAndDeception": spoken("Fact 1", "Fact 2"),
    "TwoDollar": two_dollars,
}
"""Family of environments (``Battleship`` for ``Battleship-v0-large-train``) to its grammar."""
