"""Train the tiny player on TicTacToe as it is, and in disguises; then play both on disguises it never met.

Prints the table of docs/how-to/check-environments.md: python -m experiments.disguises DATA.
"""

import sys
from pathlib import Path
from statistics import fmean
from typing import Final

import unstable_stream as us

GAME: Final = "TicTacToe-v0-train"
TRAINED_ON: Final = {"the game": GAME, "the game and 8 disguises": f"disguise:board-0-8:{GAME}"}
MEASURED: Final = (GAME, f"disguise:board-1-8:{GAME}", f"disguise:board-9-24:{GAME}")
UPDATES: Final = 60


def main(data: Path) -> None:
    """Train and measure; one line for each run, then the table."""
    effects: dict[str, list[tuple[float, float, float]]] = {}
    for seed in (1, 2, 3):
        for trained_on, env_id in TRAINED_ON.items():
            trained = us.build(
                config="examples/tictactoe.toml",
                name=f"{'named' if env_id == GAME else 'disguised'}-{seed}",
                seed=seed,
                data=data,
                train_envs=[{"env_id": env_id, "template": "tictactoe-board"}],
                iterations=UPDATES,
                batch_size=320,
                mini_batch_size=320,
                evaluation={"opponents": ["random-legal"], "first_last_games": 20, "every": UPDATES},
            ).start(live=False)
            envs = [{"env_id": each, "template": "tictactoe-board"} for each in MEASURED]
            run = us.evaluation(trained, "random-legal", games=500, envs=envs).start(live=False)
            known, new = us.disguise_effects(run)
            effects.setdefault(trained_on, []).append((known.named, known.disguised, new.disguised))
            print(
                trained.id, *(f"{each.named:+.3f} {each.disguised:+.3f}" for each in (known, new)), flush=True
            )
    print("| Trained on | the game | the 8 disguises | 16 others | game minus others |")
    print("|---|---|---|---|---|")
    for trained_on, rows in effects.items():
        lost = [named - new for named, _, new in rows]
        shown = " | ".join(f"{fmean(values):+.2f}" for values in zip(*rows, strict=True))
        print(f"| {trained_on} | {shown} | {fmean(lost):+.2f} ({min(lost):+.2f} to {max(lost):+.2f}) |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
