"""How each algorithm learns the quickstart's game: play the runs, keep their numbers, write the table.

python -m experiments.algorithms DATA [NAME ...]   # first plays the runs that are not kept yet, in DATA

The runs go one after another; one that was interrupted is resumed. In ``docs/data``,
``algorithms-evaluations.csv`` has a row for each opponent that a run was evaluated against,
``algorithms.csv`` one for each update.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import unstable_stream as us
from docs.images import curves
from unstable_stream.api.quickstart import QUICKSTART

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "algorithms.md"
BEGIN, END = "<!-- how they learn: begin -->\n", "<!-- how they learn: end -->\n"
SEEDS = (0, 1, 2)
UPDATES = 30
GAMES = 200
OPPONENTS = ("random-legal", "first-legal")

NO_BASELINE = ("rewards.final=[]",)
GROUP = 'rewards.sampling=[{ type = "GroupRelativeAdvantage" }]'
GROUP_MEAN = 'rewards.sampling=[{ type = "GroupRelativeAdvantage", normalize = false }]'
HALF_RATE = ("learner.learning_rate=5e-4",)
CLIPPED = (*HALF_RATE, "algorithm.epochs=4", "algorithm.clip_low=0.2", "algorithm.clip_high=0.2")
ADAPTER = ("learner.parameters=lora", "learner.learning_rate=1.5e-3")
SETTINGS: dict[str, tuple[str, ...]] = {
    "reinforce": (),
    "reinforce, half the rate": HALF_RATE,
    "SPIRAL": ("rewards.sampling=[]",),
    "RLOO": (*NO_BASELINE, 'rewards.sampling=[{ type = "LeaveOneOutAdvantage" }]'),
    "clipped": CLIPPED,
    "GRPO with KL": (*CLIPPED, *NO_BASELINE, GROUP, *ADAPTER, "algorithm.kl_coef=0.01"),
    "Dr. GRPO": (*CLIPPED, *NO_BASELINE, GROUP_MEAN),
    "A2C": ("algorithm.type=a2c", "algorithm.discount=0.8", *NO_BASELINE),
}
"""What each changes in the quickstart's configuration."""


def play(data: Path, wanted: list[str]) -> None:
    """Play the runs that are missing in the kept numbers, and keep theirs."""
    for seed in SEEDS:
        for name in wanted or SETTINGS:
            run_name = f"{name}, seed {seed}"
            if run_name in curves.read("algorithms-evaluations"):
                continue
            run_id = f"{name}-{seed}".lower().replace(" ", "-").replace(".", "")
            run = finished(data / run_id, [*SETTINGS[name], f"seed={seed}", f"name={run_id}"])
            if run.state != "completed":
                raise SystemExit(f"{run.id} is {run.state}: the same command goes on with it")
            curves.record("algorithms", {run_name: f"{data / run_id}/{run.id}"})
            print(run_name, "is kept", flush=True)


def finished(data: Path, changes: list[str]) -> us.Run:
    """Return the run of a data directory when it has ended; one that was interrupted is resumed."""
    if not data.exists():
        opponents = ", ".join(f'{{ name = "{opponent}" }}' for opponent in OPPONENTS)
        same = [
            "backend=inline",
            f"learner.iterations={UPDATES}",
            f"evaluation.every={UPDATES}",
            f"evaluation.first_last_games={GAMES}",
            f"evaluation.opponents=[{opponents}]",
        ]
        return us.load(QUICKSTART, data=data, overrides=[*same, *changes]).start(live=False)
    run = us.open_run(data.name, data)
    return run if run.state == "completed" else run.resume(live=False)


def table() -> str:
    """Return the table, made from the kept numbers."""
    kept = curves.read("algorithms-evaluations")
    found = {
        (name, opponent, seed, int(row["update"]) > 0): int(row["wins"]) / int(row["games"])
        for name in SETTINGS
        for seed in SEEDS
        for row in kept.get(f"{name}, seed {seed}", [])
        for opponent in (row["opponent"],)
    }
    lines = [
        "| What | `random-legal`, seeds 0, 1, 2 | mean | `first-legal`, seeds 0, 1, 2 |",
        "|---|---|---|---|",
    ]
    for title, name, after in (
        ("before any update", "reinforce", False),
        *((f"{name}", name, True) for name in SETTINGS),
    ):
        random, first = (
            [found.get((name, opponent, seed, after)) for seed in SEEDS] for opponent in OPPONENTS
        )
        known = [share for share in random if share is not None]
        mean = [sum(known) / len(known)] if len(known) == len(SEEDS) else [None]
        lines.append(f"| {title} | {shares(random)} | {shares(mean)} | {shares(first)} |")
    return "\n".join(lines) + "\n"


def shares(values: Sequence[float | None]) -> str:
    """Return shares with three digits: ``.595, .470``; – where a run is not kept."""
    return ", ".join("–" if value is None else f"{value:.3f}".removeprefix("0") for value in values)


def page(text: str) -> str:
    """Return the page with the table written anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE} lacks the lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    play(Path(sys.argv[1]), sys.argv[2:])
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
