"""An environment of your own, with the four methods of TextArena's ``Env``: take one to three stones.

[[train_envs]]
env_id = "examples/extensions/environment.py:Stones(stones=15)"
"""

import random
from typing import Any


class Stones:
    """Whoever takes the last stone wins. It lists its moves, so that ``random-legal`` can play it."""

    def __init__(self, stones: int = 12) -> None:
        self.most = stones

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.players, self.seat, self.wrong, self.winner = num_players, 0, -1, -1
        self.stones = random.Random(seed).randint(self.most // 2, self.most)

    def get_observation(self) -> tuple[int, str]:
        moves = ", ".join(f"'[{n}]'" for n in range(1, min(3, self.stones) + 1))
        return self.seat, f"{self.stones} stones are left. Available Moves: {moves}"

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if action not in [f"[{n}]" for n in range(1, min(3, self.stones) + 1)]:
            self.wrong = self.seat
            return True, {"invalid_move": True, "reason": f"{action!r} is none of the moves"}
        self.stones -= int(action[1])
        self.winner, self.seat = self.seat, (self.seat + 1) % self.players
        return self.stones == 0, {}

    def close(self) -> tuple[dict[int, float], dict[int, dict[str, Any]]]:
        """Return the final reward of every seat, and what is known of the end."""
        if self.wrong >= 0:
            rewards = {seat: -1.0 if seat == self.wrong else 0.0 for seat in range(self.players)}
            return rewards, {self.wrong: {"invalid_move": True, "reason": "an invalid move"}}
        return {seat: 1.0 if seat == self.winner else -1.0 for seat in range(self.players)}, {}
