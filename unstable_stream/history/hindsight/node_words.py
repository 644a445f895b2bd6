"""Say in two short lines what a node of :mod:`unstable_stream.history.hindsight.why` is: who played whom and
how it ended, what a step was worth, what an update trained on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from unstable_stream.history.hindsight.why import Node

# ``Any`` in what follows: facts as the archive's columns hold them.


def in_words(node: Node, weight: float | None = None) -> Sequence[str]:
    """Return the lines; none for a node that the archive knows by name only.

    Args:
        node: with its facts.
        weight: the advantage that a step had in its update, if it is known.
    """
    facts = node.facts
    if not facts:
        return ()
    match node.key.kind:
        case "run":
            return facts["name"], f"{facts['state']}, seed {facts['seed']}"
        case "checkpoint":
            base = facts["base_model"] or "the base model"
            return (
                (f"{base} before training",)
                if facts["path"] is None
                else (f"{base}, update {facts['iteration']}",)
            )
        case "update":
            trained = f"trained on {facts['trained_steps']:,} steps"
            return trained, f"loss {_signed(facts['loss'])}, {facts['dropped_steps']:,} dropped"
        case "step":
            return _step(facts, weight)
        case "trajectory":
            against = ", ".join(facts["opponents"]) or "nobody"
            return (
                f"{facts['model_uid']} against {against}",
                f"reward {_signed(facts['reward'])}, {facts['reason']}",
            )
        case "game":
            return _game(facts)
        case "rating":
            return facts[
                "model_uid"
            ], f"{facts['mu']:.2f} ± {facts['sigma']:.2f} after {facts['games']:,} games"
        case _:
            return (facts["type"],)


def _step(facts: Mapping[str, Any], weight: float | None) -> Sequence[str]:
    action = "" if facts["action"] is None else f": {facts['action']}"
    weighed = "" if weight is None else f", weight {_signed(weight)}"
    return (
        f"{facts['model_uid']}, move {facts['turn_index'] + 1}{action}",
        f"reward {_signed(facts['reward'])}{weighed}",
    )


def _game(facts: Mapping[str, Any]) -> Sequence[str]:
    seats = facts["seats"] or []
    won = [seat["model_uid"] for seat in seats if seat["result"] == "win"]
    others = [seat["model_uid"] for seat in seats if seat["result"] != "win"]
    names = [seat["model_uid"] for seat in seats]
    if facts["state"] != "finished":
        return " against ".join(names), facts["state"].replace("-", " ")
    players = (
        f"{', '.join(won)} beat {', '.join(others)}" if won and others else f"{' and '.join(names)} drew"
    )
    if len(names) == 1:
        players = f"{names[0]} {seats[0]['result'] or 'played'}"
    rewards = " : ".join("–" if seat["reward"] is None else _signed(seat["reward"]) for seat in seats)
    return players, f"{rewards}, {facts['reason']}, {facts['num_turns']} moves"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3g}".replace("-", "−")
