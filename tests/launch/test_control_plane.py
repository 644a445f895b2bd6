"""What a number of GPUs needs around it: hand-worked numbers, sizes as they are written, clear errors."""

import re
from typing import Any

import pytest

from benchmarks.processor_fold import trajectories
from unstable_stream.api.control_plane import control_plane
from unstable_stream.errors import ConfigError
from unstable_stream.launch.control_plane import (
    ControlPlane,
    Traffic,
    fitted,
    measured_costs,
    plan_control_plane,
    usual_tokens_per_gpu_s,
)


def measured(**large: float) -> dict[str, Any]:
    """Two runs of 100 turns of 1 KB, and of 11 KB."""
    return {
        "date": "2026-01-01",
        "machine": {"processor": "a processor"},
        "shapes": {
            "large": {
                "seconds": {"RolloutActor": 0.6, "collector": 0.1, "archiver": 1.1, **large},
                "turns": 100,
                "turns_per_trajectory": 2.0,
                "trajectory_bytes": 22_000.0,
                "log_bytes_per_turn": 24_000.0,
                "archive_bytes_per_turn": 11_000.0,
            },
            "small": {
                "seconds": {"RolloutActor": 0.1, "collector": 0.1, "archiver": 0.05},
                "turns": 100,
                "turns_per_trajectory": 1.0,
                "trajectory_bytes": 1_000.0,
                "log_bytes_per_turn": 4_000.0,
                "archive_bytes_per_turn": 1_000.0,
            },
        },
    }


def test_costs_are_on_the_line_through_what_was_measured() -> None:
    costs = fitted(measured())
    assert costs.cpu_s["RolloutActor"] == pytest.approx((0.0005, 5e-7)), "1 ms at 1 KB, 6 ms at 11 KB"
    assert costs.cpu_s["collector"] == pytest.approx((0.001, 0.0)), "the same at any size"
    # The line would give turns of no size a cost below zero.
    assert costs.cpu_s["archiver"] == pytest.approx((0.0, 1e-6)), "11 ms at 11 KB"
    assert costs.log_bytes == pytest.approx((2000.0, 2.0))
    assert costs.archive_bytes == pytest.approx((0.0, 1.0))


def test_the_learner_counts_the_steps_that_it_trained_on() -> None:
    runs = measured(LearnerActor=0.6)
    runs["shapes"]["small"]["seconds"]["LearnerActor"] = 0.1
    assert fitted(runs).cpu_s["LearnerActor"] == pytest.approx((0.0005, 5e-7)), "of 100 turns"
    runs["shapes"]["large"]["steps"] = 300
    fit = fitted(runs).cpu_s
    assert fit["LearnerActor"] == pytest.approx((0.0009, 1e-7)), "1 ms at 1 KB, 2 ms at 11 KB"
    assert fit["RolloutActor"] == pytest.approx((0.0005, 5e-7)), "others work on the turns that are played"


def test_a_cluster_is_planned_from_the_costs() -> None:
    traffic = Traffic(gpus=64, tokens_per_gpu_s=5000.0, prompt_tokens=100.0, completion_tokens=250.0)
    assert traffic.turns_per_s == pytest.approx(1280.0)
    assert traffic.games_per_s == pytest.approx(128.0), "two trajectories of five turns"
    plan = plan_control_plane(traffic, fitted(measured()))
    needs = {need.process: need for need in plan.needs}
    turn_s = 0.0005 + 5e-7 * traffic.turn_bytes
    assert needs["rollout workers"].cores == pytest.approx(1280 * turn_s)
    assert needs["rollout workers"].turns_per_core_s == pytest.approx(1 / turn_s)
    assert needs["collector"].cores == pytest.approx(1.28)
    assert plan.cores == pytest.approx(sum(need.cores for need in plan.needs))
    assert plan.log_bytes_per_s == pytest.approx(1280 * (2000 + 2 * traffic.turn_bytes))
    assert plan.archive_bytes_per_s == pytest.approx(1280 * traffic.turn_bytes)
    # More rollout workers can be had, but there is one collector.
    told = "\n".join(plan.warnings)
    assert "collector would need 1.28 cores, and there is work for 1: it carries 1,000 turns/s of" in told
    assert "1,280, the work of 50 GPUs; make several runs" in told
    assert "rollout" not in told
    assert [need.cores for need in plan.needs] == sorted((need.cores for need in plan.needs), reverse=True)


def _around(**traffic: int) -> ControlPlane:
    # Turns of 5.4 KB: 6.9 cores for archivers, 1.3 for the collectors.
    return plan_control_plane(
        Traffic(gpus=64, tokens_per_gpu_s=5000.0, prompt_tokens=100.0, **traffic), fitted(measured())
    )


def test_archivers_share_what_different_runs_and_environments_write() -> None:
    (told,) = [line for line in _around().warnings if line.startswith("archiver")]
    assert "archiver would need 6.91 cores, and there is work for 1" in told
    assert "several archivers of a shared archive help several runs or environments" in told
    (told,) = [line for line in _around(environments=4).warnings if line.startswith("archiver")]
    assert "and there is work for 4: it carries 741 turns/s" in told
    # Environments of a run share its collector; runs have one each.
    assert [line.split()[0] for line in _around(environments=8).warnings] == ["collector"]
    assert _around(runs=2, environments=4).warnings == []


def test_a_plan_tells_partitions() -> None:
    def partitions(**traffic: int) -> dict[str, int]:
        return {topic.topic: topic.partitions for topic in _around(**traffic).topics}

    one = {"trajectories": 1, "steps": 1, "game-outcomes": 1, "games": 1}
    assert partitions() == one, "all trajectories have one key"
    shared = {"trajectories": 6, "steps": 6, "game-outcomes": 2, "games": 2}
    assert partitions(runs=2, environments=3) == shared, "games have the key of their run"
    assert partitions(runs=9)["trajectories"] == 7, "there is no work for more archivers"
    plan = _around(environments=2)
    assert {topic.topic: (topic.key, topic.of_a_new_log) for topic in plan.topics} == {
        "trajectories": ("run/env", 8),
        "steps": ("game", 8),
        "game-outcomes": ("run", 8),
        "games": ("run", 8),
    }
    assert plan.topics[0].bytes_per_s == pytest.approx(640 * plan.traffic.turn_bytes), "half each"
    assert re.search(r"trajectories +run/env +2 +8\n", plan.table())


def test_a_load_that_needs_more_partitions_than_a_log_has_is_said() -> None:
    told = plan_control_plane(
        Traffic(gpus=128, tokens_per_gpu_s=5000.0, prompt_tokens=100.0, runs=20), fitted(measured())
    ).warnings
    assert "trajectories would need 14 partitions and a new log has 8: put the runs into several logs" in told


@pytest.mark.parametrize(("prompt", "completion"), [(500, 250), (100, 400), (2000, 100)])
def test_turns_are_as_large_as_they_are_written(prompt: int, completion: int) -> None:
    # Half of the prompt is the observation here, and nearly all of it in a game.
    written = trajectories(1, 6, prompt, completion, 4)[0]
    traffic = Traffic(gpus=1, tokens_per_gpu_s=1, prompt_tokens=prompt, completion_tokens=completion)
    assert traffic.turn_bytes == pytest.approx(len(written) / 6, rel=0.2)


def test_the_kept_measurement_names_all_that_a_run_is_made_of() -> None:
    costs = measured_costs()
    assert {"RolloutActor", "EngineActor", "LearnerActor", "collector", "processors", "archiver"} <= set(
        costs.cpu_s
    )
    assert all(base >= 0 and slope >= 0 for base, slope in costs.cpu_s.values())


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (None, 5000.0),
        ("Qwen/Qwen3-8B", 4750.0),
        ("some/model-1.9B-Base", 20_000.0),
        ("SmolLM2-135M", 281_481.0),
    ],
)
def test_a_smaller_model_generates_faster(model: str | None, expected: float) -> None:
    assert control_plane(1, model).traffic.tokens_per_gpu_s == pytest.approx(expected, rel=0.001)


def test_what_cannot_be_planned_is_said() -> None:
    with pytest.raises(ConfigError, match="the name does not tell the size"):
        control_plane(8, "some/model")
    assert control_plane(8, "some/model", tokens_per_gpu_s=1000).traffic.turns_per_s == 32
    with pytest.raises(ConfigError, match=r"turns=0: expected a number above 0"):
        control_plane(8, turns=0)
    with pytest.raises(ConfigError, match=r"gpus=-1"):
        control_plane(-1)
    assert usual_tokens_per_gpu_s(3.8e9) == pytest.approx(10_000)
