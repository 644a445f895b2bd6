"""What one seed makes of the world: settings of the run, of its log, and how often what goes wrong."""

import random
from dataclasses import asdict, dataclass
from typing import Any

from unstable_stream.runs.config import RunConfig, parse_config


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rates are probabilities per occasion; times are simulated seconds."""

    seed: int
    like_kafka: bool
    """Offsets have gaps, ``ratings`` are compacted."""
    session_timeout_s: float
    """After so long without a poll a member of a group loses its partitions."""
    latency_s: float
    """A request of the log takes up to so long."""
    hiccup: float
    """Of requests: those that take 100 times as long."""
    late_delivery: float
    """Of polls and partitions: those that deliver only a part of what is there, or nothing."""
    lost_request: float
    """Of requests: those that fail without effect."""
    lost_answer: float
    """Of appends and commits: those that were stored, and fail all the same."""
    crash_at_request: float
    """Of requests: those before or after which the process is killed."""
    crash: float
    """Of steps (from one ``await`` to the next): those before which the process is killed."""
    pause: float
    """Of steps: those before which the process stops for a while, and is replaced if that takes long."""
    disk_full: float
    """Of writes to the archive and of checkpoints: those that fail."""
    power_cuts: int
    """How often all processes die at once."""
    clock_jumps: int
    compactions: int
    open_transactions: int
    """How often a transaction of another producer stays open in a topic, for up to 70 s."""
    orphans: float
    """Of rollout workers of a dead collector: those that go on for a while."""
    faults_s: float
    """When this time has passed, nothing goes wrong any more."""
    processor_hosts: int
    shared_hosts: bool
    """The hosts serve all runs."""
    archived: bool
    plugged_in: bool
    replayed: bool
    """At the end, every game is played again."""
    settings: dict[str, Any]

    def __str__(self) -> str:
        return "\n".join(f"  {name} = {value}" for name, value in asdict(self).items())


def draw_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    rng = random.Random(f"{seed}/scenario")

    def sometimes(share: float, low: float, high: float) -> float:
        """Zero in most scenarios, so that each fault is also met without the others."""
        value = low * (high / low) ** rng.random()
        return value if rng.random() < share else 0.0

    like_kafka = rng.random() < 0.5
    power_cuts = rng.randint(1, 2) if not like_kafka and rng.random() < 0.2 else 0
    return Scenario(
        seed=seed,
        like_kafka=like_kafka,
        session_timeout_s=rng.choice((3.0, 10.0, 20.0)),
        latency_s=rng.choice((0.0005, 0.005, 0.05)),
        hiccup=sometimes(0.3, 0.001, 0.05),
        late_delivery=sometimes(0.6, 0.05, 0.6),
        lost_request=sometimes(0.4, 0.0005, 0.01),
        lost_answer=sometimes(0.5, 0.002, 0.05),
        crash_at_request=sometimes(0.6, 0.001, 0.02),
        crash=sometimes(0.5, 0.0001, 0.002),
        pause=sometimes(0.4, 0.0001, 0.001),
        disk_full=sometimes(0.3, 0.02, 0.3),
        power_cuts=power_cuts,
        clock_jumps=rng.randint(1, 4) if rng.random() < 0.3 else 0,
        compactions=rng.randint(1, 4) if like_kafka else 0,
        open_transactions=_open_transactions(seed) if like_kafka else 0,
        orphans=rng.choice((0.0, 0.5, 1.0)),
        faults_s=rng.choice((5.0, 20.0, 60.0)),
        processor_hosts=rng.choice((1, 1, 2, 3)),
        shared_hosts=rng.random() < 0.3,
        archived=rng.random() < 0.12,
        plugged_in=rng.random() < 0.25,
        replayed=rng.random() < 0.1,
        settings=_draw_settings(rng) | {"trained_models": _trained_models(seed)},
    )


def _open_transactions(seed: int) -> int:
    rng = random.Random(f"{seed}/open transactions")
    return rng.randint(5, 30) if rng.random() < 0.3 else 0


def _trained_models(seed: int) -> list[dict[str, Any]]:
    rng = random.Random(f"{seed}/trained models")
    if rng.random() < 0.75:
        return []
    return [{"name": "first", "seats": [0]}, {"name": "second"}]


def _draw_settings(rng: random.Random) -> dict[str, Any]:
    batch_size = rng.choice((4, 8, 12))
    save_every = rng.choice((1, 1, 2, 3))
    final = [{"type": "RoleAdvantageByEnvFormatter"}] if rng.random() < 0.5 else []
    seed = rng.randrange(1000)
    return {
        "model": "tiny-player",
        "seed": seed,
        "train_envs": [{"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}],
        "sampling": {"max_tokens": 4},
        "collector": {
            "num_workers": rng.choice((2, 4, 8)),
            "num_eval_workers": 2,
            "num_rollout_workers": rng.choice((1, 2)),
            "max_turns": 12,
            "invalid_moves_allowed": rng.choice((0, 1)),
            "filter_opponent_invalid": rng.random() < 0.3,
            "branches": (0, 0, 1, 3)[seed % 4],
            "branch_at": ("random", "unsure")[seed % 2],
        },
        "evaluation": {
            "opponents": [{"name": "random-legal"}],
            "every": rng.choice((1, 2, 10)),
            "max_eval_games_per_ckpt": 1,
            "first_last_games": 1,
        },
        "model_pool": {"fixed": [{"name": "random-legal"}] if rng.random() < 0.5 else []},
        "rewards": {"final": final},
        "lora": {"lora_rank": 1, "lora_alpha": 1},
        "learner": {
            "iterations": rng.choice((2, 3, 4)),
            "batch_size": batch_size,
            "mini_batch_size": 4,
            "save_every": save_every,
            "keep_optimizer_states": rng.choice(("all", 1, 2)),
            "dtype": "float32",
            "num_threads": 1,
        },
        # With a bound below `save_every - 1` no update would be made: such a run is refused at its start.
        "buffer": {"max_staleness": rng.choice((None, None, max(save_every - 1, seed % 4)))},
    }


def run_config(scenario: Scenario) -> RunConfig:
    """Return the configuration of the run."""
    return parse_config(scenario.settings)
