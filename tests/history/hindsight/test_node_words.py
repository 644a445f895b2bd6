"""What a node of a graph is, in words."""

from typing import Any

import pytest

from unstable_stream.history.hindsight.node_words import in_words
from unstable_stream.history.hindsight.why import Node, NodeKey


def _seat(uid: str, result: str | None, reward: float | None) -> dict[str, Any]:
    return {"model_uid": uid, "result": result, "reward": reward}


def _game(*seats: dict[str, Any], state: str = "finished") -> dict[str, Any]:
    return {"state": state, "seats": list(seats), "reason": "win", "num_turns": 7}


_WON, _DREW, _NOT_YET = _seat("a", "win", 1), _seat("a", "draw", 0), _seat("a", None, None)
_STEP = {"model_uid": "ckpt-000002", "turn_index": 2, "action": "[4]", "reward": -0.25}


@pytest.mark.parametrize(
    ("kind", "facts", "weight", "says"),
    [
        ("game", _game(_WON, _seat("b", "loss", -1)), None, "a beat b; +1 : −1, win, 7 moves"),
        ("game", _game(_DREW, _DREW), None, "a and a drew; +0 : +0, win, 7 moves"),
        ("game", _game(_WON), None, "a win; +1, win, 7 moves"),
        ("game", _game(_NOT_YET, _NOT_YET, state="in-flight"), None, "a against a; in flight"),
        ("step", _STEP, 0.5, "ckpt-000002, move 3: [4]; reward −0.25, weight +0.5"),
        ("step", _STEP | {"action": None}, None, "ckpt-000002, move 3; reward −0.25"),
        ("checkpoint", {"base_model": "tiny", "path": None}, None, "tiny before training"),
        ("checkpoint", {"base_model": "tiny", "path": "x", "iteration": 5}, None, "tiny, update 5"),
        ("step", {}, None, ""),
    ],
)  # fmt: skip
def test_a_node_in_words(kind: str, facts: dict[str, Any], weight: float | None, says: str) -> None:
    assert "; ".join(in_words(Node(NodeKey(kind, "run-a", "x"), facts), weight)) == says
