"""Transformations from configuration."""

from typing import Any

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.reward_transformations import (
    FinalRewardTransform,
    NormalizeRewardsByEnv,
    PenaltyForInvalidMove,
    RoleAdvantageByEnvFormatter,
    WinDrawLossFormatter,
    build_final,
    build_sampling,
    build_step,
)


class Negate(FinalRewardTransform):
    """A user's own."""

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        return {seat: -reward for seat, reward in x.items()}


def test_known_and_own_transformations_are_built_in_order() -> None:
    names = ["WinDrawLossFormatter", f"{__name__}:Negate", "RoleAdvantageByEnvFormatter(tau=0.5)"]
    stack = build_final(names)
    first, second, role = stack.transforms
    assert isinstance(first, WinDrawLossFormatter)
    assert type(second).__name__ == "Negate"
    assert isinstance(role, RoleAdvantageByEnvFormatter)
    assert role.tau == 0.5
    assert stack({0: 9.0, 1: 4.0}, "A") == {0: -1.0, 1: 1.0}
    (penalty,) = build_step([{"type": "PenaltyForInvalidMove", "penalty": -1.0}]).transforms
    assert isinstance(penalty, PenaltyForInvalidMove)
    assert (penalty.reward, penalty.penalty) == (0.0, -1.0)
    (normalize,) = build_sampling([{"type": "NormalizeRewardsByEnv", "z_score": True}]).transforms
    assert isinstance(normalize, NormalizeRewardsByEnv)
    assert normalize.z_score


def test_every_build_is_fresh() -> None:
    spec = [{"type": "RoleAdvantageFormatter", "tau": 1.0}]
    first, second = build_final(spec), build_final(spec)
    first({0: 1.0})
    assert second({0: 1.0}) == {0: 1.0}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"type": "Wdl"}, "unknown final transformation 'Wdl'; known: WinDrawLossFormatter, RoleAdvantage"),
        ({"type": "RewardForFormat"}, "rewards.final.0: unknown final transformation 'RewardForFormat'"),
        ({"tau": 0.5}, "has no type, which names what is used"),
        ({"type": "RoleAdvantageFormatter", "alpha": 1}, r"cannot take \{'alpha': 1\}"),
        ({"type": "RoleAdvantageFormatter", "tau": 7}, r"tau is 7, expected a number in \(0, 1\]"),
        ({"type": "RoleAdvantageFormatter", "tau": "x"}, r"refused \{'tau': 'x'\}"),
        ({"type": "no_such_module_here:X"}, "cannot import no_such_module_here: ModuleNotFoundError"),
        ({"type": f"{__name__}:Missing"}, "has no 'Missing'"),
        ({"type": f"{__name__}:pytest"}, r"is the module pytest; expected __call__\(x: dict\[int, float\]"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_final([spec])
    assert "\n" not in str(caught.value)


def halved(x: dict[int, float], env_id: str | None, divisor: float = 2.0) -> dict[int, float]:
    return {seat: reward / divisor for seat, reward in x.items()}


def test_a_function_takes_the_place_of_a_class_and_a_string_that_of_a_table() -> None:
    stack = build_final([f"{__name__}:halved", {"type": f"{__name__}:halved", "divisor": 4.0}])
    assert stack({0: 8.0}, "A") == {0: 1.0}
    assert build_final(["RoleAdvantageFormatter(tau=1.0, default_role_adv=3.0)"])({0: 4.0}) == {0: 1.0}
