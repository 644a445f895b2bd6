"""Algorithms by the names of their papers: what each stands for, and what is stronger than it."""

from typing import Any

import pytest

from tests.services.workers.test_game_schedule import config
from unstable_stream.algorithms import build_algorithm
from unstable_stream.algorithms.settings import A2CConfig, PPOConfig, ReinforceConfig
from unstable_stream.api.settings import make_config
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import KINDS
from unstable_stream.reward_transformations import build_final, build_sampling
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.overlay import PRESETS, overlaid

BASE = {"model": "tiny-player", "train_envs": [{"env_id": "TicTacToe-v0-train"}]}
ROLE = ({"type": "RoleAdvantageByEnvFormatter"},)
BATCH_NORM = ({"type": "NormalizeRewardsByEnv", "z_score": True},)
GROUP = ({"type": "GroupRelativeAdvantage"},)


def parsed(*overrides: str, **sections: Any) -> RunConfig:
    return parse_config(BASE | sections, overrides)


@pytest.mark.parametrize(
    ("name", "algorithm", "final", "sampling"),
    [
        ("spiral", ReinforceConfig(), ROLE, ()),
        ("rloo", ReinforceConfig(), (), ({"type": "LeaveOneOutAdvantage"},)),
        ("grpo", ReinforceConfig(clip_low=0.2, clip_high=0.2, is_clip=3.0, kl_coef=0.04), (), GROUP),
        (
            "dr-grpo",
            ReinforceConfig(clip_low=0.2, clip_high=0.2, is_clip=3.0),
            (),
            ({"type": "GroupRelativeAdvantage", "normalize": False},),
        ),
        ("dapo", ReinforceConfig(clip_low=0.2, clip_high=0.28, is_clip=3.0, loss_average="token"), (), GROUP),
        (
            "gspo",
            ReinforceConfig(
                clip_low=3e-4,
                clip_high=4e-4,
                trust_region="update",
                ratio_of="answer_mean",
                loss_average="answer",
            ),
            (),
            GROUP,
        ),
        ("cross-entropy", ReinforceConfig(is_clip=None), (), ()),
        ("a2c", A2CConfig(), (), BATCH_NORM),
        ("ppo", PPOConfig(), (), BATCH_NORM),
        ("reinforce", ReinforceConfig(), ROLE, BATCH_NORM),
    ],
)
def test_a_name_stands_for_settings_that_the_run_records(
    name: str, algorithm: Any, final: Any, sampling: Any
) -> None:
    for made in (
        parsed(algorithm=name),
        parsed(algorithm={"type": name}),
        parsed(f"algorithm.type={name}"),
        parsed(f"algorithm={name}"),
        make_config({"algorithm": name}, BASE),
    ):
        assert made.algorithm == algorithm
        assert (made.rewards.final, made.rewards.sampling) == (final, sampling)
    recorded = made.model_dump(mode="json")
    assert recorded["algorithm"]["type"] in ("reinforce", "a2c", "ppo")
    assert parse_config(recorded) == made
    build_final(made.rewards.final), build_sampling(made.rewards.sampling)  # they take these arguments


def test_what_is_set_beside_a_preset_is_stronger() -> None:
    own = {"final": list(ROLE), "step": [{"type": "Discount", "gamma": 0.9}]}
    made = parsed(algorithm={"type": "grpo", "kl_coef": 0.0, "epochs": 3}, rewards=own)
    assert made.algorithm == ReinforceConfig(clip_low=0.2, clip_high=0.2, is_clip=3.0, epochs=3)
    assert (made.rewards.final, made.rewards.sampling) == (ROLE, GROUP)
    assert parsed(algorithm="grpo(kl_coef=0.5)").algorithm.kl_coef == 0.5  # type: ignore[union-attr]
    text = parsed("algorithm.kl_coef=0", algorithm="grpo").algorithm
    assert text == ReinforceConfig(clip_low=0.2, clip_high=0.2, is_clip=3.0)


@pytest.mark.parametrize("first", [True, False])
def test_a_preset_on_the_command_line_brings_its_advantage_into_a_file(first: bool) -> None:
    """The file has another one; a stage beside the preset's name is kept, in whatever order."""
    file = BASE | {
        "algorithm": {"entropy_coef": 0.05},
        "rewards": {"final": list(ROLE), "step": [{"type": "Discount", "gamma": 0.9}], "sampling": []},
    }
    made = parse_config(file, ["algorithm.type=grpo"])
    assert (made.rewards.final, made.rewards.sampling) == ((), GROUP)
    assert made.rewards.step == ({"type": "Discount", "gamma": 0.9},)
    assert made.algorithm.entropy_coef == 0.05  # type: ignore[union-attr]
    overrides = ["algorithm.type=grpo", 'rewards.sampling=[{ type = "LeaveOneOutAdvantage" }]']
    made = parse_config(file, overrides if first else overrides[::-1])
    assert (made.rewards.final, made.rewards.sampling) == ((), ({"type": "LeaveOneOutAdvantage"},))
    over_a_run = parse_config(overlaid(parse_config(file).model_dump(mode="json"), {"algorithm": "rloo"}))
    assert over_a_run.rewards.sampling == ({"type": "LeaveOneOutAdvantage"},)
    plain = parse_config(BASE | {"algorithm": "grpo"}, ["algorithm.type=reinforce"])
    assert plain == parse_config(BASE)


def test_a_name_that_is_none_is_refused_with_those_there_are() -> None:
    assert set(PRESETS) == {*KINDS["algorithm"].presets, "a2c", "ppo", "dpo"}
    with pytest.raises(ConfigError, match=r"unknown algorithm 'grp'; did you mean grpo\? known: .*dr-grpo"):
        build_algorithm("grp")
    with pytest.raises(ConfigError, match="kl_coef compares with the base model"):
        parsed("algorithm.type=grpo", learner={"parameters": "all"})
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\.gae_lambda'"):
        parsed(algorithm={"type": "rloo", "gae_lambda": 0.5})
    assert config(algorithm="spiral") == config(algorithm={"type": "reinforce"}, rewards={"sampling": []})
