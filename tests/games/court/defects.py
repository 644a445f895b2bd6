"""Environments with one planted defect each, and two sound ones.

``FOUND_BY`` is the check that has to find the defect. Each is a game of cards or of piles that is sound but
for the lines here.
"""

import copy
import itertools
import random
import threading
import time
import uuid
from typing import Any, ClassVar

import numpy as np

ALL: list[type["Cards"]] = []


class Cards:
    """Two players hold one card each of ten. Pass or bet; a bet is called or folded; the higher card wins."""

    max_turns = 3
    reward_range = (-2.0, 2.0)
    reward_sum = 0
    FOUND_BY = ""

    def __init_subclass__(cls, found_by: str = "", **options: Any) -> None:
        cls.FOUND_BY = found_by or cls.FOUND_BY
        if cls.FOUND_BY:
            ALL.append(cls)

    def reset(self, num_players: int, seed: int) -> None:
        assert num_players == 2
        self.seed = seed
        self.moves: list[str] = []
        self.deal(seed)
        self.pot = [1, 1]
        self.seat = 0
        self.refused = ""
        self.rewards: dict[int, float] | None = None
        self.reason = ""
        self.blamed: int | None = None

    def deal(self, seed: int) -> None:
        self.cards = random.Random(seed).sample(range(11, 21), 2)

    @property
    def legal(self) -> list[str]:
        return ["[call]", "[fold]"] if self.moves[-1:] == ["[bet]"] else ["[pass]", "[bet]"]

    @property
    def offered(self) -> list[str]:
        return self.legal

    def text(self) -> str:
        lines = [
            f"You are player {self.seat}.",
            f"Your card: {self.cards[self.seat]}",
            f"The pot has {sum(self.pot)} chips.",
            f"Moves so far: {', '.join(self.moves) or 'none'}",
            *([f"Illegal: {self.refused}"] if self.refused else []),
            f"Available Moves: {', '.join(self.offered)}",
        ]
        return "\n".join(lines)

    def get_observation(self) -> tuple[int, str]:
        return self.seat, self.text()

    def is_legal(self, action: str) -> bool:
        return action in self.legal

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if not self.is_legal(action):
            return self.refuse(action)
        self.refused = ""
        self.apply(action)
        return self.rewards is not None, {}

    def refuse(self, action: str) -> tuple[bool, dict[str, Any]]:
        if self.refused:
            self.blamed = self.seat
            self.end(1 - self.seat, 1, f"Player {self.seat} made an illegal move")
        self.refused = f"{action[:20]!r} is no legal move"
        return self.rewards is not None, {"invalid_move": True, "reason": self.refused}

    def apply(self, action: str) -> None:
        self.moves.append(action)
        if action in ("[bet]", "[call]"):
            self.pot[self.seat] += 1
        higher = int(self.cards[1] > self.cards[0])
        if action == "[fold]":
            self.end(1 - self.seat, 1, f"Player {1 - self.seat} won: the other folded")
        elif action == "[call]" or self.moves[-2:] == ["[pass]", "[pass]"]:
            self.end(higher, min(self.pot), f"Player {higher} won by the higher card")
        self.seat = 1 - self.seat

    def end(self, winner: int, stake: float, reason: str) -> None:
        self.rewards = {winner: float(stake), 1 - winner: -float(stake)}
        self.reason = reason

    def close(self) -> tuple[dict[int, float] | None, dict[int, dict[str, Any]]]:
        return self.rewards, {
            seat: {"reason": self.reason, "invalid_move": seat == self.blamed} for seat in range(2)
        }


class Piles(Cards):
    """Nim with two piles, of which all is seen."""

    max_turns = 8
    reward_range = (-1.0, 1.0)
    perfect_information = True

    def deal(self, seed: int) -> None:
        self.piles = [random.Random(seed).randint(2, 4), 3]

    @property
    def legal(self) -> list[str]:
        return [f"[{n} {k}]" for n, size in enumerate(self.piles) for k in range(1, size + 1)]

    def text(self) -> str:
        said = f"\nIllegal: {self.refused}" if self.refused else ""
        return f"Piles: {self.piles}{said}\nAvailable Moves: {', '.join(self.offered)}"

    def apply(self, action: str) -> None:
        pile, number = map(int, action.strip("[]").split())
        self.piles[pile] -= number
        if not any(self.piles):
            self.end(self.seat, 1, f"Player {self.seat} wins")
        self.seat = 1 - self.seat


# -- chance -------------------------------------------------------------------------------------------


class ProcessRandom(Cards, found_by="the seed decides"):
    def deal(self, seed: int) -> None:
        self.cards = random.sample(range(11, 21), 2)


class NumpyRandom(Cards, found_by="the seed decides"):
    def deal(self, seed: int) -> None:
        self.cards = [int(card) for card in np.random.permutation(10)[:2] + 11]


class IgnoresSeed(Cards, found_by="the seed decides"):
    def deal(self, seed: int) -> None:
        self.cards = random.Random(7).sample(range(11, 21), 2)


class OwnUnseeded(Cards, found_by="same seed, same game"):
    def deal(self, seed: int) -> None:
        self.cards = [int(card) for card in np.random.default_rng().permutation(10)[:2] + 11]


class SystemChance(Cards, found_by="same seed, same game"):
    def deal(self, seed: int) -> None:
        self.cards = random.SystemRandom().sample(range(11, 21), 2)


class ByTheDay(Cards, found_by="same seed, same game"):
    def deal(self, seed: int) -> None:
        self.cards = random.Random(seed + int(time.time() // 86_400)).sample(range(11, 21), 2)


class ByTheHour(Cards, found_by="same seed, same game"):
    def deal(self, seed: int) -> None:
        super().deal(seed)
        self.begin = time.monotonic()

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if time.monotonic() - self.begin > 60:
            self.end(1 - self.seat, 1, "the time is over")
        return super().step(action)


class NamedByChance(Cards, found_by="same seed, same game"):
    def text(self) -> str:
        return f"Game {uuid.uuid4()}\n{super().text()}"


class CountsGames(Cards, found_by="same seed, same game"):
    count: ClassVar = itertools.count()

    def deal(self, seed: int) -> None:
        self.cards = random.Random(seed + next(self.count)).sample(range(11, 21), 2)


class OrderOfSet(Cards, found_by="another process"):
    def deal(self, seed: int) -> None:
        deck = list({f"card{n}" for n in range(10)})
        self.cards = [int(card[4:]) + 11 for card in random.Random(seed).sample(deck, 2)]


# -- state --------------------------------------------------------------------------------------------


class SharedDeck(Cards, found_by="same seed, same game"):
    deck: ClassVar = list(range(11, 21))

    def deal(self, seed: int) -> None:
        random.Random(seed).shuffle(self.deck)
        self.cards = self.deck[:2]


class SharedCards(Cards, found_by="games in turn"):
    held: ClassVar[list[int]] = [0, 0]

    def deal(self, seed: int) -> None:
        super().deal(seed)
        self.held[:] = self.cards
        self.cards = self.held


class DeckInPlace(Cards, found_by="reset begins anew"):
    def __init__(self) -> None:
        self.deck = list(range(11, 21))

    def deal(self, seed: int) -> None:
        random.Random(seed).shuffle(self.deck)
        self.cards = self.deck[:2]


class KeepsPot(Cards, found_by="reset begins anew"):
    def reset(self, num_players: int, seed: int) -> None:
        before = getattr(self, "pot", [1, 1])
        super().reset(num_players, seed)
        self.pot = before


class CopySharesMoves(Cards, found_by="copies"):
    def __deepcopy__(self, memo: Any) -> "CopySharesMoves":
        return copy.copy(self)


class CopyDealsAgain(Cards, found_by="copies"):
    def __deepcopy__(self, memo: Any) -> "CopyDealsAgain":
        twin = copy.copy(self)
        twin.moves, twin.pot = [*self.moves], [*self.pot]
        twin.cards = [*reversed(self.cards)]
        return twin


class NoCopy(Cards, found_by="copies"):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class CountsLooks(Cards, found_by="looking changes nothing"):
    looks = 0

    def text(self) -> str:
        self.looks += 1
        return f"{super().text()}\nAsked {self.looks} times"


class LookDealsAgain(Cards, found_by="looking changes nothing"):
    def get_observation(self) -> tuple[int, str]:
        self.cards[self.seat] = 11 + (self.cards[self.seat] - 10) % 10
        return super().get_observation()


# -- what is hidden -----------------------------------------------------------------------------------


class OpenCards(Cards, found_by="hidden stays hidden"):
    def text(self) -> str:
        return f"The opponent's card: {self.cards[1 - self.seat]}\n{super().text()}"


class DumpsState(Cards, found_by="hidden stays hidden"):
    def text(self) -> str:
        return f"{super().text()}\ndebug cards={self.cards} pot={self.pot}"


class CodedCard(Cards, found_by="hidden stays hidden"):
    def text(self) -> str:
        return f"Mark on the other card: {'abcdefghij'[self.cards[1 - self.seat] - 11] * 3}\n{super().text()}"


class ToldAtReset(Cards, found_by="hidden stays hidden"):
    def deal(self, seed: int) -> None:
        super().deal(seed)
        self.told = [f"You: {self.cards[seat]}\nThe other: {self.cards[1 - seat]}" for seat in range(2)]

    def text(self) -> str:
        return f"{self.told[self.seat]}\nAvailable Moves: {', '.join(self.offered)}"


class TellsAfterBet(Cards, found_by="hidden stays hidden"):
    def text(self) -> str:
        told = (
            f"Player {1 - self.seat} bets with {self.cards[1 - self.seat]}\n" if "[bet]" in self.moves else ""
        )
        return told + super().text()


class OneSeatSeesAll(Cards, found_by="hidden stays hidden"):
    def text(self) -> str:
        return super().text() + (f"\nCards on the table: {self.cards}" if self.seat else "")


class HighOrLow(Cards, found_by="hidden stays hidden"):
    def text(self) -> str:
        higher = self.cards[self.seat] > self.cards[1 - self.seat]
        return f"{super().text()}\nThe game looks {'good' if higher else 'bad'}."


class MovesTell(Cards, found_by="hidden stays hidden"):
    @property
    def legal(self) -> list[str]:
        return super().legal[:: 1 if self.cards[1 - self.seat] < 16 else -1]


class TellsIllegal(Cards, found_by="hidden stays hidden"):
    def refuse(self, action: str) -> tuple[bool, dict[str, Any]]:
        answer = super().refuse(action)
        self.refused += f" {self.cards}"
        return answer


class ShowsSeed(Cards, found_by="shows no seed"):
    def text(self) -> str:
        return f"Game number {self.seed}\n{super().text()}"


class ShowsSeedInHex(Cards, found_by="shows no seed"):
    def text(self) -> str:
        return f"Table {self.seed:x}\n{super().text()}"


# -- rewards ------------------------------------------------------------------------------------------


class NotANumber(Cards, found_by="rewards"):
    def end(self, winner: int, stake: float, reason: str) -> None:
        super().end(winner, float("nan") if "folded" in reason else stake, reason)


class Infinite(Cards, found_by="rewards"):
    def end(self, winner: int, stake: float, reason: str) -> None:
        super().end(winner, float("inf"), reason)


class OutOfRange(Cards, found_by="rewards"):
    def end(self, winner: int, stake: float, reason: str) -> None:
        super().end(winner, stake * 2, reason)


class LeavesOutLoser(Cards, found_by="rewards"):
    def end(self, winner: int, stake: float, reason: str) -> None:
        self.rewards, self.reason = {winner: stake}, reason


class NoRewards(Cards, found_by="rewards"):
    def close(self) -> tuple[dict[int, float] | None, dict[int, dict[str, Any]]]:
        return None, {}


class WrongSum(Cards, found_by="sums of rewards"):
    def end(self, winner: int, stake: float, reason: str) -> None:
        super().end(winner, stake, reason)
        if "folded" in reason and self.rewards:
            self.rewards[1 - winner] = 0.0


class OddSum(Cards, found_by="sums of rewards"):
    reward_sum = None  # type: ignore[assignment]

    def end(self, winner: int, stake: float, reason: str) -> None:
        super().end(winner, stake, reason)
        if self.cards[winner] == 20 and self.cards[1 - winner] > 14 and self.rewards:
            self.rewards[1 - winner] = 0.0


class LoserIsPaid(Cards, found_by="winners"):
    def end(self, winner: int, stake: float, reason: str) -> None:
        super().end(1 - winner if "higher" in reason else winner, stake, reason)


class PaidDraw(Cards, found_by="winners"):
    def end(self, winner: int, stake: float, reason: str) -> None:
        super().end(winner, stake, "The game is a draw" if "folded" in reason else reason)


class LuckAlone(Cards, found_by="moves matter"):
    def end(self, winner: int, stake: float, reason: str) -> None:
        super().end(self.cards[0] % 2, 1, "Over")


class NoChipMoves(Cards, found_by="bets move chips"):
    def apply(self, action: str) -> None:
        super().apply(action)
        self.pot = [1, 1]


class FirstWins(Cards, found_by="seats"):
    def end(self, winner: int, stake: float, reason: str) -> None:
        super().end(0, stake, "Over")


class NumbersAsText(Cards, found_by="rewards"):
    def end(self, winner: int, stake: float, reason: str) -> None:
        self.rewards = {winner: f"{stake}", 1 - winner: f"-{stake}"}  # type: ignore[dict-item]


class OneSeatAlone(Cards, found_by="seats"):
    def apply(self, action: str) -> None:
        super().apply(action)
        self.seat = 0


# -- moves --------------------------------------------------------------------------------------------


class Endless(Cards, found_by="ends"):
    max_turns = None  # type: ignore[assignment]

    def apply(self, action: str) -> None:
        self.moves = [action]
        self.seat = 1 - self.seat


class LongerThanDeclared(Piles, found_by="ends"):
    max_turns = 1


class OffersIllegal(Piles, found_by="offered moves are taken"):
    @property
    def offered(self) -> list[str]:
        return [*self.legal, f"[0 {self.piles[0] + 1}]"]


class RefusesOffered(Cards, found_by="offered moves are taken"):
    def is_legal(self, action: str) -> bool:
        return super().is_legal(action) and not (action == "[call]" and self.cards[self.seat] < 14)


class TakesMore(Piles, found_by="other moves are refused"):
    @property
    def offered(self) -> list[str]:
        return self.legal[:-1] or self.legal


class TakesNonsense(Cards, found_by="illegal moves are answered"):
    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        return super().step(action if action in self.legal else self.legal[0])


class SilentRefusal(Cards, found_by="illegal moves are answered"):
    def refuse(self, action: str) -> tuple[bool, dict[str, Any]]:
        return False, {}


class TellsOther(Cards, found_by="illegal moves are answered"):
    def refuse(self, action: str) -> tuple[bool, dict[str, Any]]:
        answer = super().refuse(action)
        self.seat = 1 - self.seat
        return answer


class IllegalWins(Cards, found_by="illegal moves are answered"):
    def refuse(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.end(self.seat, 1, "Over")
        return True, {"invalid_move": True, "reason": "no such move"}


class BlamesOther(Cards, found_by="illegal moves are answered"):
    def refuse(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.refused = "before"
        answer = super().refuse(action)
        self.blamed = 1 - self.seat
        return answer


class IllegalRaises(Cards, found_by="illegal moves are answered"):
    def refuse(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.pot[self.seat] += 1
        return super().refuse(action)


class PaysForIllegal(Cards, found_by="illegal moves are answered"):
    def refuse(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.cards = [*reversed(self.cards)]
        return super().refuse(action)


class ObeysWords(Cards, found_by="cheats"):
    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if "wins" in action or "has won" in action:
            self.end(self.seat, 2, "Over")
            return True, {}
        return super().step(action)


class LongWordsWin(Cards, found_by="cheats"):
    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if len(action) > 5000:
            self.end(self.seat, 2, "Over")
            return True, {}
        return super().step(action)


# -- errors and texts ---------------------------------------------------------------------------------


class Fails(Cards, found_by="plays without errors"):
    def apply(self, action: str) -> None:
        super().apply({"[fold]": self.moves[5]}[action] if action == "[fold]" else action)


class NeverReturns(Cards, found_by="plays without errors"):
    def apply(self, action: str) -> None:
        while action == "[call]":
            pass
        super().apply(action)


class UnknownSeat(Cards, found_by="plays without errors"):
    def get_observation(self) -> tuple[int, str]:
        return (2 if "[bet]" in self.moves else self.seat), self.text()


class MarksOfChat(Cards, found_by="texts"):
    def text(self) -> str:
        return f"<|im_start|>user\n{super().text()}<|im_end|>"


class TextOfOther(Cards, found_by="texts"):
    def get_observation(self) -> tuple[int, str]:
        asked, self.seat = self.seat, 1 - self.seat
        text = self.text()
        self.seat = asked
        return asked, text


class SaysNothing(Cards, found_by="texts"):
    def text(self) -> str:
        return "" if len(self.moves) == 2 else super().text()


class EndlessText(Cards, found_by="texts"):
    def text(self) -> str:
        return "The rules are long. " * 2000 + super().text()
