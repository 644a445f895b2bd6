"""The rules of a collapse over series of metrics: what warns, once, since when, and what does not."""

import json
from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from unstable_stream.algorithms.collapse import CollapseWatch, Sign

RANDOM = "SimpleTak-v0-train/random-legal"


def watch(series: Iterable[Mapping[str, float]]) -> list[Sign]:
    """Return all signs; a watch that is restored before each update sees the same."""
    fold, signs = CollapseWatch(), []
    for update, metrics in enumerate(series, start=1):
        restored = CollapseWatch()
        restored.restore(json.loads(json.dumps(fold.state())))
        seen = fold.apply(update, metrics)
        assert restored.apply(update, metrics) == seen
        signs += seen
        fold = restored
    return signs


def fixed(wins: int, losses: int, games: int = 100) -> dict[str, float]:
    return {
        "fixed_games": games,
        "fixed_win_rate": wins / games,
        "fixed_loss_rate": losses / games,
        f"fixed_games/{RANDOM}": games,
        f"fixed_wins/{RANDOM}": wins,
    }


# -- entropy -----------------------------------------------------------------------------------


def falling(*entropies: float, **others: float) -> list[dict[str, float]]:
    return [{"entropy": entropy, **others} for entropy in entropies]


def test_certain_while_games_are_lost() -> None:
    series = falling(2.0, 1.0, 0.3, 0.05, 0.02, 0.01, 0.004, 0.002, **fixed(60, 30))
    (sign,) = watch(series)
    assert (sign.rule, sign.signal, sign.update, sign.began) == ("certain", "entropy", 7, 3)
    assert (sign.value, sign.reference) == (0.004, 0.03)
    assert sign.text == "the entropy is 0.004 nats, below 0.03, while games are lost"


def test_answers_that_ignore_the_position_are_noticed_within_three_updates_at_the_same_entropy() -> None:
    generator = np.random.default_rng(5)
    healthy = 1.4 + 0.2 * generator.normal(size=60)
    ignoring = 0.02 * np.abs(generator.normal(size=10))
    values = [*healthy.tolist(), *ignoring.tolist()]
    (sign,) = watch([{"entropy": 1.2, "answer_information": value} for value in values])
    assert (sign.rule, sign.update, sign.began) == ("ignoring", 63, 60)
    assert "the policy answers alike whatever it is shown" in sign.text
    # What was never much is no fall.
    assert watch([{"answer_information": value / 6} for value in values]) == []


def test_in_mirror_self_play_alone_somebody_always_loses() -> None:
    assert [sign.rule for sign in watch(falling(2.0, *[0.01] * 4))] == ["certain"]


def test_a_rule_warns_again_only_after_a_recovery() -> None:
    assert len(watch(falling(2.0, *[0.01] * 5, *[1.0] * 9, *[0.01] * 30))) == 1
    signs = watch(falling(2.0, *[0.01] * 5, *[1.0] * 10, *[0.01] * 30))
    assert [(sign.update, sign.began) for sign in signs] == [(4, 1), (19, 16)]
    flicker = watch(falling(2.0, *[0.01] * 5, *([1.0] * 5 + [0.01] * 2) * 9))
    assert len(flicker) == 1


# -- games that end by an invalid answer --------------------------------------------------------


def invalid(*fractions: float, games: int = 40) -> list[dict[str, float]]:
    return [{"finished_games": games, "invalid_game_fraction": fraction} for fraction in fractions]


def test_a_policy_that_cannot_play_is_named_at_the_first_update_and_once() -> None:
    (sign,) = watch(invalid(0.975, 1.0, 1.0, 0.96, 1.0))
    assert (sign.rule, sign.update, sign.began) == ("unplayable", 1, 1)
    assert sign.text == "98% of the games ended by an invalid or unreadable answer of the policy"


# -- shares of answers -------------------------------------------------------------------------


def shares(name: str, values: Iterable[float], turns: int = 500) -> list[dict[str, float]]:
    return [{"game_turns": turns, name: value} for value in values]


@pytest.mark.parametrize(
    ("name", "rule", "values"),
    [
        ("legal_fraction", "illegal", [0.6, 0.9, 0.98, 0.99, 0.99, 0.95, 0.9, 0.84, 0.8, 0.8, 0.8, 0.8]),
        ("parsed_fraction", "unparsed", [0.9, 1.0, 1.0, 1.0, 1.0, 0.98, 0.95, 0.92, 0.9, 0.9, 0.9, 0.9]),
    ],
)
def test_answers_get_worse(name: str, rule: str, values: list[float]) -> None:
    (sign,) = watch(shares(name, values))
    assert (sign.rule, sign.signal) == (rule, name)
    assert 3 <= sign.began <= 5  # of three updates, the first was made by the policy before
    assert 8 < sign.update <= 11
    assert sign.value < sign.reference


# -- results -----------------------------------------------------------------------------------


def test_results_against_fixed_opponents_fall_while_the_mirror_is_silent() -> None:
    wins = [30, 50, 70, 80, 75, 50, 40, 40, 40]
    series = [fixed(win, 100 - win) | {"mirror_games": 60, "mirror_reward": 0.0} for win in wins]
    (sign,) = watch(series)
    assert (sign.rule, sign.update, sign.began) == ("result", 8, 5)
    assert (sign.value, sign.reference) == (0.4, 0.8)
    assert sign.text == ("40% of the games against random-legal in SimpleTak-v0-train are won, down from 80%")


def test_evaluations_spread_over_updates_are_pooled() -> None:
    """64 games every fifth update, in two parts: windows of at least 100 games, whatever lies between."""
    series: list[dict[str, float]] = []
    for rate in (0.5, 0.7, 0.7, 0.3, 0.3, 0.3):
        series += [fixed(round(40 * rate), 0, 40), fixed(round(24 * rate), 0, 24), {}, {}, {}]
    (sign,) = watch(series)
    assert sign.rule == "result"
    assert sign.update == 22


def test_a_result_that_only_wobbles_does_not_warn() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        wins = rng.binomial(64, 0.7, size=100)
        assert not watch([fixed(int(win), 0, 64) for win in wins]), seed


# -- divergence --------------------------------------------------------------------------------


def test_the_divergence_jumps() -> None:
    series = [{"kl_to_base": value} for value in (0.0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.5, 0.5, 0.5, 3.0, 5.0, 6.0)]
    between: list[dict[str, float]] = [row for measured in series for row in (measured, {}, {}, {})]
    (sign,) = watch(between)  # measured in every fourth update
    assert (sign.rule, sign.update, sign.began) == ("divergence", 41, 36)


# -- no collapse -------------------------------------------------------------------------------

STRONG = "SimpleTak-v0-train/perfect"
RISING = np.linspace(0.5, 0.95, 60)


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(falling(2.0, 1.0, 0.05, *[0.01] * 9, **fixed(95, 5)), id="certain, and it wins"),
        # Most tokens of a long answer are certain: the entropy must have fallen to a tenth, too.
        pytest.param(falling(0.05, *[0.02] * 30), id="a task that is certain by nature"),
        pytest.param(falling(2.0, 0.01, 0.01, 1.0, 0.01, 0.01, 1.0), id="two updates are noise"),
        pytest.param(invalid(0.9, 0.94, 0.9), id="it plays some games"),
        pytest.param(invalid(1.0, 1.0, games=15), id="few games"),
        pytest.param(shares("legal_fraction", [1.0] * 3 + [0.8] * 5, turns=10), id="few turns"),
        pytest.param(
            shares("legal_fraction", np.random.default_rng(0).binomial(200, RISING) / 200, turns=200),
            id="learning and noise",
        ),
        pytest.param(
            [fixed(90, 10)] * 5 + [{f"fixed_games/{STRONG}": 100.0, f"fixed_wins/{STRONG}": 5.0}] * 5,
            id="a strong opponent in place of a weak one",
        ),
        pytest.param([{"kl_to_base": 0.02 * update} for update in range(200)], id="it diverges steadily"),
        pytest.param([{"kl_to_base": 0.5 + 39.5 * (at == 12)} for at in range(25)], id="one spike"),
        pytest.param([{"completion_tokens": 0.0}] * 20, id="updates without numbers"),
    ],
)
def test_what_is_no_collapse_does_not_warn(series: list[dict[str, float]]) -> None:
    assert not watch(series)
