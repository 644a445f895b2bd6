"""A rating system of your own: a win is worth one point, a draw a half.

unstable-stream rerate RUN --system examples/extensions/rating_system.py:Points
"""

from collections.abc import Mapping
from typing import Any


class Points:
    name = "points"
    uncertain = False
    start = (0.0, 0.0)

    def inherited(self, mu: float, sigma: float) -> tuple[float, float]:
        return mu, sigma

    def pair(self, env_id: str) -> Any:
        def after(mu_w: float, _: float, mu_l: float, __: float, drawn: bool) -> tuple[float, ...]:
            return mu_w + (0.5 if drawn else 1.0), 0.0, mu_l + (0.5 if drawn else 0.0), 0.0

        return after

    def many(
        self, env_id: str, players: Mapping[str, tuple[float, float]], ranks: Mapping[str, float]
    ) -> dict[str, tuple[float, float]]:
        best = min(ranks.values())
        return {uid: (mu + (ranks[uid] == best), 0.0) for uid, (mu, _) in players.items()}

    def score(self, mu: float, sigma: float) -> float:
        return mu

    def parameters(self) -> dict[str, Any]:
        return {}
