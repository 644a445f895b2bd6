"""A section of another type begins with the defaults of that type, and keeps what somebody has set."""

from typing import Any

import pytest

from tests.services.workers.test_game_schedule import config
from unstable_stream.algorithms.settings import A2CConfig, PPOConfig, ReinforceConfig
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.overlay import as_recorded, overlaid


def changed(*overrides: str, **sections: Any) -> Any:
    """Return the recorded configuration of a run, changed as by ``fork`` or ``train --resume``."""
    recorded = config(**sections).model_dump(mode="json")
    return parse_config(recorded, overrides)


@pytest.mark.parametrize(
    ("recorded", "overrides", "algorithm"),
    [
        # A run records all keys, also those that nobody has set.
        ({}, ["type=ppo"], PPOConfig()),
        ({}, ["type=a2c"], A2CConfig()),
        ({"type": "a2c"}, ["type=reinforce"], ReinforceConfig()),
        # What was set is kept where the new type has it.
        ({"entropy_coef": 0.05, "is_clip": 5.0}, ["type=ppo"], PPOConfig(entropy_coef=0.05, is_clip=5.0)),
        ({"type": "a2c", "gae_lambda": 0.5, "kl_coef": 1}, ["type=reinforce"], ReinforceConfig(kl_coef=1)),
        ({"is_clip": 5.0}, ["type=reinforce"], ReinforceConfig(is_clip=5.0)),
        # In any order.
        ({}, ["type=ppo", "epochs=2"], PPOConfig(epochs=2)),
        ({}, ["epochs=2", "type=ppo"], PPOConfig(epochs=2)),
    ],
)
def test_another_algorithm_has_its_own_defaults_and_keeps_what_was_set(
    recorded: dict[str, Any], overrides: list[str], algorithm: Any
) -> None:
    assert changed(*(f"algorithm.{each}" for each in overrides), algorithm=recorded).algorithm == algorithm


def test_another_engine_has_its_own_defaults_and_keeps_what_was_set() -> None:
    assert changed("engine.type=vllm", engine={"max_model_len": 64}).engine.max_model_len == 64
    assert changed("engine.type=vllm").engine.max_parallel_seq == 128


def test_code_of_ones_own_takes_only_its_own_arguments() -> None:
    own = changed("algorithm.type=examples/extensions/algorithm.py:Vanilla", "algorithm.weight=0.5").algorithm
    assert own.spec["weight"] == 0.5
    assert own.spec.keys() == {"type", "weight"}


def test_a_file_over_a_recorded_configuration() -> None:
    recorded = config(algorithm={"entropy_coef": 0.05}).model_dump(mode="json")
    assert parse_config(overlaid(recorded, {"algorithm": {"type": "ppo"}})).algorithm == PPOConfig()
    kept = parse_config(overlaid(recorded, {"algorithm": {"kl_coef": 0.1}})).algorithm
    assert kept == ReinforceConfig(entropy_coef=0.05, kl_coef=0.1)


def test_a_key_beside_a_preset_in_one_string_keeps_the_preset() -> None:
    tree = overlaid({"algorithm": "grpo"}, {"algorithm": {"kl_coef": 0.1}})
    assert tree["algorithm"] == {"type": "grpo", "kl_coef": 0.1}


def test_what_a_run_recorded_keeps_its_meaning() -> None:
    """A run of an earlier version: its buffer and ``ppo`` were others, and it has no keys that say so."""
    begun = config(algorithm={"type": "reinforce", "epochs": 2, "entropy_coef": 0.1})
    recorded = begun.model_dump(mode="json")
    del recorded["buffer"]["overflow_draws"]
    recorded["algorithm"] |= {"type": "ppo", "clip_low": 0.2, "clip_high": 0.3, "is_clip": 3.0}
    read = parse_config(as_recorded(recorded))
    assert read.buffer.overflow_draws == "once"
    clipped = ReinforceConfig(epochs=2, entropy_coef=0.1, clip_low=0.2, clip_high=0.3, is_clip=3.0)
    assert read.algorithm == clipped
    assert as_recorded(read.model_dump(mode="json")) == read.model_dump(mode="json")
    today = config(algorithm={"type": "ppo"})
    assert parse_config(as_recorded(today.model_dump(mode="json"))) == today
    assert today.buffer.overflow_draws == "each-update"
