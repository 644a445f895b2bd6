"""The examples' numbers, worked out by hand on small histories."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.archive.history import made_up_run
from tests.model_pool.outcomes import make_outcome
from tests.reward_transformations.trajectories import make_trajectory, make_turn
from unstable_stream.events import Event, GameOutcome, Metrics, Trajectory
from unstable_stream.services.streams.plugins import Plugin, load_plugin, metrics_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "consumers"


def example(target: str) -> Plugin:
    return load_plugin(str(EXAMPLES / target))


def outcome(index: int, moves: str, *models: str, **fields: Any) -> GameOutcome:
    """A game of one-letter moves between models."""
    seats = {seat: (uid, 0.0) for seat, uid in enumerate(models)}
    return make_outcome(index, seats, actions=moves, env_id="E", **fields)


def trajectory(index: int, version: int, *completions: Sequence[int], split: str = "train") -> Trajectory:
    """A trajectory whose turns sampled these tokens."""
    turns = [make_turn(turn, completion=tokens) for turn, tokens in enumerate(completions)]
    return make_trajectory(index, env_id="E", split=split, policy_version=version, turns=turns)


def values(metrics: Sequence[Metrics]) -> list[tuple[str, float, int | None]]:
    return [(name, value, event.update) for event in metrics for name, value in event.values.items()]


# -- exploration ----------------------------------------------------------------------------------

NEW, OLD, FIXED = "ckpt-000002", "ckpt-000001", "random"


@pytest.mark.parametrize(
    ("games", "expected"),
    [
        (
            # Fifteen times abcd (grams abc, bcd), then abce (abc, bce): 32 grams, 3 distinct. The first
            # game is all new, the last half new, fourteen have nothing new.
            [outcome(index, "abce" if index == 15 else "abcd", OLD, FIXED) for index in range(16)],
            ("ckpt-000001", 3 / 32, 1.5 / 16, 1),
        ),
        (
            # abc, played by the older checkpoint before, and eight others, of 16 games with one gram each.
            [
                outcome(0, "abc", OLD, FIXED),
                *(outcome(1 + i, "abc" if i % 2 else "ab" + "defghijk"[i // 2], NEW, NEW) for i in range(16)),
            ],
            ("ckpt-000002", 9 / 16, 8 / 16, 2),
        ),
        (
            # A short game is one gram, and an empty one is left out.
            [outcome(index, "ab" if index % 2 else "", OLD, FIXED) for index in range(32)],
            ("ckpt-000001", 1 / 16, 1 / 16, 1),
        ),
        (
            # Eight checkpoints come after the one that played abc: for the ninth it is new again.
            [
                *(outcome(i, "xyz" if i else "abc", f"ckpt-{i:06d}") for i in range(9)),
                *(outcome(100 + i, "abc", "ckpt-000009") for i in range(16)),
            ],
            ("ckpt-000009", 1 / 16, 1 / 16, 9),
        ),
    ],
)
def test_exploration_counts_grams_and_novelty(
    games: list[GameOutcome], expected: tuple[str, float, float, int]
) -> None:
    uid, distinct, novelty, update = expected
    assert values(metrics_of(example("exploration_coverage.py:coverage"), games)) == [
        (f"exploration/E/{uid}/distinct-3grams", distinct, update),
        (f"exploration/E/{uid}/novelty", novelty, update),
    ]


# -- language -------------------------------------------------------------------------------------


def test_language_by_hand() -> None:
    """64 trajectories: one completion 7 7 7 7 7 each, but for the last with 1 2 3 and 4."""
    plugin = example("language_drift.py:repetition")
    window = [trajectory(index, index // 32, [7] * 5) for index in range(63)]
    metrics = values(metrics_of(plugin, [*window, trajectory(63, 1, [1, 2, 3], [4])]))
    name = "language/E"
    assert metrics == [
        # Pairs: 63 x 4 of (7, 7), then (1, 2), (2, 3).
        (f"{name}/distinct-2", 3 / 254, 1),
        # 4-grams: two in each run of five sevens, the second a repetition.
        (f"{name}/repeated-4grams", 63 / 126, 1),
        (f"{name}/completion-tokens", (63 * 5 + 4) / 65, 1),
        (f"{name}/length-drift", 1.0, 1),
    ]


def test_language_compares_length_with_the_first_window() -> None:
    plugin = example("language_drift.py:repetition")
    first = [trajectory(index, 0, [1, 2]) for index in range(64)]
    other = [trajectory(index, 9, [5] * 50, split="eval") for index in range(64, 100)]
    second = [trajectory(index, 1, [1, 2, 3]) for index in range(100, 164)]
    metrics = values(metrics_of(plugin, [*first, *other, *second]))
    assert [m for m in metrics if m[0].endswith(("drift", "tokens"))] == [
        ("language/E/completion-tokens", 2.0, 0),
        ("language/E/length-drift", 1.0, 0),
        ("language/E/completion-tokens", 3.0, 1),
        ("language/E/length-drift", 1.5, 1),
    ]
    assert not [m for m in metrics if m[0].endswith("4grams")], "no completion has four tokens"


# -- invalid moves --------------------------------------------------------------------------------


def test_an_alarm_is_given_once_until_the_rate_has_halved() -> None:
    plugin = example("invalid_moves.py:InvalidMoveAlert")
    # 50 games with 13 ended by its own invalid move; then valid ones; then invalid ones again.
    invalid = [index % 4 == 0 for index in range(50)] + [False] * 50 + [True] * 20
    games: list[Event] = [
        outcome(index, "a", OLD, FIXED, invalid_seat=0 if bad else None) for index, bad in enumerate(invalid)
    ]
    with structlog.testing.capture_logs() as logs:
        metrics = values(metrics_of(plugin, games))
    name = "invalid-moves/E/ckpt-000001"
    assert {each for each, *_ in metrics} == {name, f"alerts/{name}"}
    rates = [value for each, value, _ in metrics if each == name]
    assert [value for each, value, _ in metrics if each != name] == [0.26, 0.0, 0.4]
    in_window = [sum(invalid[end - 50 : end]) / 50 for end in range(50, 121, 10)]
    assert rates == in_window
    assert rates[0] == 13 / 50
    warned = [(entry["rate"], entry["games"], entry["position"]) for entry in logs]
    assert warned == [(0.26, 50, "game-outcomes[0]@49"), (0.4, 50, "game-outcomes[0]@119")]


def test_invalid_moves_of_the_opponent_do_not_count_and_a_mirror_game_counts_twice() -> None:
    plugin = example("invalid_moves.py:InvalidMoveAlert")
    games: list[Event] = [outcome(index, "a", FIXED, OLD, invalid_seat=0) for index in range(30)]
    games += [outcome(30 + index, "a", NEW, NEW, invalid_seat=1) for index in range(25)]
    assert values(metrics_of(plugin, games)) == [
        ("invalid-moves/E/ckpt-000002", 0.5, None),
        ("alerts/invalid-moves/E/ckpt-000002", 0.5, None),
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_runs_over_a_whole_history(path: Path) -> None:
    plugin = load_plugin(str(path))
    metrics = metrics_of(plugin, made_up_run(updates=40))
    assert all(math.isfinite(value) for _, value, _ in values(metrics))
    assert plugin.doc
    assert f"examples/consumers/{path.name}" in path.read_text()


def test_the_example_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    page = (EXAMPLES.parents[1] / "docs" / "how-to" / "consumers.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    path = tmp_path / "my_metrics.py"
    path.write_text(code)
    games = [outcome(index, "a", OLD, reason="draw") for index in range(20)]
    assert values(metrics_of(load_plugin(f"{path}:draws"), games)) == [("draws/E", 1.0, None)] * 2
