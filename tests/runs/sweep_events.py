"""A made-up sweep: two learning rates with three seeds each, evaluated before and after one update."""

from typing import Final

from tests.builders import made
from tests.model_pool.outcomes import make_outcome
from unstable_stream.events import Event, RunFinished, RunStarted

SWEEP: Final = "demo-3fa1c2"
WON: Final = {"0.001": {0: (1, 3), 1: (1, 4), 2: (1, 4)}, "0.5": {0: (1, 0), 1: (1, 0), 2: (2, 1)}}
"""By learning rate and seed, how many of five games the first policy wins, and the last one."""


def sweep_events(sweep: str = SWEEP) -> list[Event]:
    """Return its events; the last seed of the second learning rate has not ended.

    All games have the same move, so those that one policy all lost are one and the same.
    """
    events: list[Event] = []
    for rate, seeds in WON.items():
        for seed, won in seeds.items():
            run = f"demo-{rate}-{seed}"
            own = {"name": sweep, "varied": {"learner.learning_rate": float(rate)}}
            config = {
                "model": "tiny-player",
                "train_envs": [{"env_id": "Env-v0"}],
                "seed": seed,
                "sweep": own,
            }
            config |= {"name": "demo", "learner": {"iterations": 1, "learning_rate": float(rate)}}
            events.append(made(RunStarted, run_id=run, name="demo", seed=seed, config=config))
            for index in range(10):
                wins = index % 5 < won[index // 5]
                policy = f"ckpt-{index // 5:06d}"
                seats = {0: (policy, 1.0 if wins else -1.0), 1: ("random-legal", -1.0 if wins else 1.0)}
                events.append(
                    make_outcome(index, seats, run_id=run, split="eval", actions=["a"], evaluated_uid=policy)
                )
            if run != "demo-0.5-2":
                events.append(made(RunFinished, run_id=run, occurred_at_ms=1_700_000_100_000))
    return events
