"""Copies of a position, to try moves on: pickled ones beside those of :func:`copy.deepcopy`, in CPU time.

Run ``python -m benchmarks.move_tries [--positions 200]``. A position is copied once, as where the first move
tried is taken, and six times, as where about one in six of the grammar's moves is legal.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import textarena

from benchmarks.harness import compare, parser, report
from unstable_stream.games.environments import Environment
from unstable_stream.games.rehearsal import Copies, deep_copy

ENVIRONMENTS = {
    "TicTacToe-v0-train": 2,
    "Golf-v0-train": 2,
    "Battleship-v0-train": 2,
    "SettlersOfCatan-v0-train": 4,
}


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--positions", type=int, default=200)
    options = arguments.parse_args()
    results = [
        compare(
            f"{env_id}, {copies} to a position",
            partial(timed, options.positions, partial(pickled, env, copies)),
            partial(timed, options.positions, partial(deep, env, copies)),
            unit="positions/s",
            rounds=options.rounds,
        )
        for env_id, env in {env_id: _begun(env_id, seats) for env_id, seats in ENVIRONMENTS.items()}.items()
        for copies in (1, 6)
    ]
    report(
        "copies to try moves on",
        results,
        options.json,
        versions={"textarena": textarena.__version__},
    )


def _begun(env_id: str, num_players: int) -> Any:
    environment = Environment(env_id)
    environment.reset(num_players, seed=0)
    return environment._env


def timed(positions: int, action: Callable[[], object]) -> float:
    """Return positions a second of CPU time."""
    began = time.process_time()
    for _ in range(positions):
        action()
    return positions / (time.process_time() - began)


def pickled(env: Any, copies: int) -> None:
    """Pickle once, unpickle as often as needed."""
    made = Copies(env)
    assert made.pickled
    for _ in range(copies):
        made.make()


def deep(env: Any, copies: int) -> None:
    """Copy as often as needed."""
    for _ in range(copies):
        deep_copy(env)


if __name__ == "__main__":
    main()
