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
    stack = build_final(
        [
            {"type": "WinDrawLossFormatter"},
            {"type": f"{__name__}:Negate"},
            {"type": "RoleAdvantageByEnvFormatter", "tau": 0.5},
        ]
    )
    assert [type(t).__name__ for t in stack.transforms] == [
        "WinDrawLossFormatter",
        "Negate",
        "RoleAdvantageByEnvFormatter",
    ]
    assert isinstance(stack.transforms[0], WinDrawLossFormatter)
    role = stack.transforms[2]
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
        ({"type": "Wdl"}, "unknown type 'Wdl'; known: WinDrawLossFormatter, RoleAdvantageFormatter"),
        ({"type": "RewardForFormat"}, "unknown type 'RewardForFormat'"),
        ({"tau": 0.5}, "has no type; known"),
        ({"type": "RoleAdvantageFormatter", "alpha": 1}, r"cannot take \{'alpha': 1\}"),
        ({"type": "RoleAdvantageFormatter", "tau": 7}, r"tau is 7, expected a number in \(0, 1\]"),
        ({"type": "RoleAdvantageFormatter", "tau": "x"}, r"refused \{'tau': 'x'\}"),
        ({"type": "no_such_module_here:X"}, "cannot import 'no_such_module_here:X'.*Python path"),
        ({"type": f"{__name__}:Missing"}, "cannot import"),
        ({"type": f"{__name__}:pytest"}, "expected a subclass of FinalRewardTransform"),
    ],
)
def test_what_is_wrong_is_said(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_final([spec])
