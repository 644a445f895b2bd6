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


def test_another_algorithm_has_its_own_defaults() -> None:
    """A run records all keys, also those that nobody has set."""
    assert changed("algorithm.type=ppo").algorithm == PPOConfig()
    assert changed("algorithm.type=a2c").algorithm == A2CConfig()
    assert changed("algorithm.type=reinforce", algorithm={"type": "a2c"}).algorithm == ReinforceConfig()


def test_what_was_set_is_kept_where_the_new_type_has_it() -> None:
    ppo = changed("algorithm.type=ppo", algorithm={"entropy_coef": 0.05, "is_clip": 5.0}).algorithm
    assert ppo == PPOConfig(entropy_coef=0.05, is_clip=5.0)
    plain = changed("algorithm.type=reinforce", algorithm={"type": "a2c", "gae_lambda": 0.5, "kl_coef": 0.1})
    assert plain.algorithm == ReinforceConfig(kl_coef=0.1)
    assert changed("engine.type=vllm", engine={"max_model_len": 64}).engine.max_model_len == 64
    assert changed("engine.type=vllm").engine.max_parallel_seq == 128


@pytest.mark.parametrize("first", [True, False])
def test_the_order_of_the_overrides_does_not_matter(first: bool) -> None:
    overrides = ["algorithm.type=ppo", "algorithm.epochs=2"]
    assert changed(*(overrides if first else overrides[::-1])).algorithm == PPOConfig(epochs=2)


def test_the_same_type_changes_nothing_else() -> None:
    assert changed("algorithm.type=reinforce", algorithm={"is_clip": 5.0}).algorithm.is_clip == 5.0


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
    recorded = config(algorithm={"type": "reinforce", "epochs": 2, "entropy_coef": 0.1}).model_dump(
        mode="json"
    )
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
