"""A final-reward transformation of your own: a function, as it keeps no state.

[rewards]
final = ["examples/extensions/final_transformation.py:winner_takes_all"]
"""


def winner_takes_all(x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
    """Give the seat that did best 1, everybody else 0; those who share the first place share the 1."""
    best = max(x.values())
    winners = [seat for seat, reward in x.items() if reward == best]
    return {seat: 1.0 / len(winners) if seat in winners else 0.0 for seat in x}
