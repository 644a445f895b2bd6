"""Read and write the ids of disguised environments: ``disguise:NUMBERS:ENV``."""

import re
from dataclasses import dataclass
from typing import Final

from unstable_stream.errors import ConfigError

PREFIX: Final = "disguise:"
_NUMBERS: Final = re.compile(r"(board-)?(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class DisguiseNumbers:
    """The disguises that the games of an environment wear."""

    first: int
    last: int
    board: bool = False
    """Whether the board alone is disguised, in the game's own words."""

    def id_of(self, env_id: str) -> str:
        """Return the id of an environment in these disguises."""
        numbers = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{PREFIX}{'board-' if self.board else ''}{numbers}:{env_id}"


def read_disguise(named: str) -> tuple[DisguiseNumbers, str]:
    """Return the numbers and the environment of ``NUMBERS:ENV``.

    Raises:
        ConfigError: it is none.
    """
    numbers, _, env_id = named.partition(":")
    found = _NUMBERS.fullmatch(numbers)
    if found is None or not env_id or int(found[3] or found[2]) < int(found[2]):
        raise ConfigError(
            f"{PREFIX}{named}: expected {PREFIX}NUMBERS:ENV, where NUMBERS is 3, 1-8 or board-1-8, e.g. "
            f"{PREFIX}1-8:TicTacToe-v0-train"
        )
    return DisguiseNumbers(int(found[2]), int(found[3] or found[2]), found[1] is not None), env_id


def plain_id(env_id: str) -> str:
    """Return the environment's id without a disguise."""
    numbers, _, named = env_id.removeprefix(PREFIX).partition(":")
    return named if named and env_id.startswith(PREFIX) and _NUMBERS.fullmatch(numbers) else env_id
