"""A game for any number of players, in which every answer is a move."""

import random
from typing import Any


class Talk:
    """All players speak in turn, each so often; chance decides who wins."""

    def __init__(self, turns: int = 4, topic: int = 0) -> None:
        """``turns``: of each player; ``topic``: tells one environment from another."""
        self._turns = turns
        self._topic = topic

    def reset(self, num_players: int, seed: int | None = None) -> None:
        """Begin a game."""
        self._players = num_players
        self._spoken = 0
        self._winner = random.Random(seed).randrange(num_players)

    def get_observation(self) -> tuple[int, str]:
        """Return the seat to move and what it is told."""
        return (
            self._spoken % self._players,
            f"Topic {self._topic}: {self._spoken} have spoken. Say something.",
        )

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        """Take any answer."""
        self._spoken += 1
        return self._spoken == self._turns * self._players, {}

    def close(self) -> tuple[dict[int, float], dict[int, dict[str, Any]]]:
        """Return the reward of each seat."""
        return {seat: 1.0 if seat == self._winner else -1.0 for seat in range(self._players)}, {}
