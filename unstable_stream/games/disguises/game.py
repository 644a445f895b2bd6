"""Play an environment in disguise: its texts are told otherwise, and what is answered is told back."""

import random
import re
from typing import Any, Final

from unstable_stream.errors import ConfigError
from unstable_stream.events.seeds import derive_seed
from unstable_stream.extensions import Reference
from unstable_stream.games.disguises.naming import read_disguise
from unstable_stream.games.disguises.wordings import BOARDS, WORDINGS, Disguise
from unstable_stream.games.environments import make_environment
from unstable_stream.games.players import PlainTurn

_BRACKETS: Final = re.compile(r"\[([^\[\]\n]+)\]")
_NOTHING: Final = "[none]"
"""An action that no game has."""


class DisguisedGame:
    """One game, with the interface of TextArena's environments.

    What the environment says of refused moves and of the end is recorded in its own words; no player sees it.
    """

    def __init__(self, named: str, **arguments: bool | int | float | str) -> None:
        """Make the environment.

        Args:
            named: ``NUMBERS:ENV``.
            arguments: those of the environment.

        Raises:
            ConfigError: no disguise of it is known; one line, which names the environments that have some.
        """
        self.numbers, target = read_disguise(named)
        makers = BOARDS if self.numbers.board else WORDINGS
        game, first, variant = target.partition("-v0")
        self._make = makers.get(game)
        # Other variants than -train show the messages since the last turn, blind ones no board at all.
        if self._make is None or (first and (not variant.endswith("-train") or "-blind" in variant)):
            of = "the board of " if self.numbers.board else ""
            listed = ", ".join(name if ":" in name else f"{name}-v0-train" for name in makers)
            raise ConfigError(f"disguise:{named}: {of}{target} has no disguises; those that have: {listed}")
        self.env: Any = make_environment(Reference(target, arguments).text)
        self.disguise = Disguise({}, str)
        self.number = 0

    @property
    def state(self) -> Any:
        """The environment's own."""
        return self.env.state

    def reset(self, num_players: int, seed: int | None = None) -> None:
        """Begin a game, and put on the disguise that the seed draws."""
        self.env.reset(num_players=num_players, seed=seed)
        choices = self.numbers.last - self.numbers.first + 1
        self.number = self.numbers.first + derive_seed(seed or 0, "disguise") % choices
        self.disguise = Disguise({}, str)
        if self.number and self._make is not None:
            # Seeded by the number alone: all games in disguise 3 are told in the same words.
            text = self.env.get_observation()[1]
            self.disguise = self._make(text, random.Random(self.number))

    def get_observation(self) -> tuple[int, str]:
        """Return the seat to move and the disguised text."""
        seat, text = self.env.get_observation()
        self._plain = text
        return seat, self.disguise.tell(text)

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        """Make the move that the disguised action names."""
        done, info = self.env.step(action=self._undisguised(action))
        return done, info

    def close(self) -> Any:
        """Return the rewards, and what is known of the end."""
        return self.env.close()

    def plain_turn(self) -> PlainTurn:
        """Return the last observation as it is without the disguise."""
        return PlainTurn(self._plain, self._disguised)

    def _disguised(self, action: str) -> str:
        names = self.disguise.actions
        return _BRACKETS.sub(lambda found: f"[{names.get(found[1], found[1])}]", action)

    def _undisguised(self, action: str) -> str:
        if not self.number:
            return action
        plain = {told.casefold(): name for name, told in self.disguise.actions.items()}
        said = [" ".join(text.split()).casefold() for text in _BRACKETS.findall(action)]
        return " ".join(f"[{plain[text]}]" for text in said if text in plain) or _NOTHING
