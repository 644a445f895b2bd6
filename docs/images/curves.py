"""Record the curves of a page and draw them: language-model, quickstart, other-games, collapse.

python docs/images/curves.py PAGE NAME=DATA/RUN ...    # reads the runs into data/PAGE*.csv; others stay
python docs/images/curves.py PAGE                      # draws PAGE.svg from these files

``data/PAGE.csv`` has a row for each update, ``data/PAGE-evaluations.csv`` one for each opponent evaluated.
"""

import csv
import sys
from pathlib import Path

import unstable_stream as us

DATA = Path(__file__).parents[1] / "data"
PICTURES = Path(__file__).parent
COLOURS = ("#2471a3", "#c0392b", "#1e8449", "#9a7d0a", "#6c3483", "#17202a", "#d35400")
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 220, 46, 26, 24
MEAN_OF = 5
"""Updates whose games are counted together: each has some 30 training games against ``random-legal``."""

_UPDATES = """
    WITH played AS (
        SELECT policy_version AS update, count(*) AS games, count(*) FILTER (result = 'win') AS wins
        FROM seats WHERE run_id = $run AND split = 'train' AND trained AND opponent = 'random-legal'
        GROUP BY ALL
    )
    SELECT u.update, round(metrics['entropy'], 4) AS entropy, round(metrics['legal_fraction'], 4) AS legal,
        round(metrics['parsed_fraction'], 4) AS parsed, round(metrics['kl_to_base'], 3) AS kl_to_base,
        coalesce(p.games, 0) AS games, coalesce(p.wins, 0) AS wins
    FROM updates AS u LEFT JOIN played AS p USING (update) WHERE u.run_id = $run ORDER BY u.update
"""
_EVALUATIONS = """
    SELECT policy_version AS update, opponent, count(*) AS games, count(*) FILTER (result = 'win') AS wins,
        count(*) FILTER (result = 'draw') AS draws
    FROM seats WHERE run_id = $run AND split = 'eval' AND kind = 'checkpoint' GROUP BY ALL ORDER BY ALL
"""
_AGAINST = "random-legal"
Rows = list[dict[str, str]]


def record(page: str, runs: dict[str, str]) -> None:
    """Write every update and every evaluation of the runs; the others of the page stay."""
    DATA.mkdir(exist_ok=True)
    for suffix, query in (("", _UPDATES), ("-evaluations", _EVALUATIONS)):
        rows = [row for name, kept in read(page + suffix).items() if name not in runs for row in kept]
        for name, place in runs.items():
            data, _, run_id = place.rpartition("/")
            run = us.open_run(run_id, data)
            rows += [{"run": name} | row for row in run.sql(query, {"run": run.id}).dicts()]
        with (DATA / f"{page}{suffix}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


def read(page: str) -> dict[str, Rows]:
    """Return the rows of each run."""
    runs: dict[str, Rows] = {}
    file_of_page = DATA / f"{page}.csv"
    if file_of_page.exists():
        with file_of_page.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                runs.setdefault(row["run"], []).append(row)
    return runs


def win_rate(rows: Rows, index: int) -> float | None:
    """Return the share of games won in this update and those just before."""
    last = rows[max(0, index - MEAN_OF + 1) : index + 1]
    games = sum(int(row["games"]) for row in last)
    return sum(int(row["wins"]) for row in last) / games if games else None


def panel(title: str, curves: list[list[tuple[int, float]]], last: int, left: int) -> str:
    """Return one plot of shares by update."""
    parts = [f'<text x="{left}" y="15">{title}</text>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + (HEIGHT - TOP - GAP) * (1 - share)
        parts.append(
            f'<line x1="{left}" x2="{left + WIDTH - LEFT}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>'
            f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{share:.0%}</text>'
        )
    for update in range(0, last + 1, 20):
        x = left + (WIDTH - LEFT) * update / last
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{update}</text>')
    for number, curve in enumerate(curves):
        points = " ".join(
            f"{left + (WIDTH - LEFT) * update / last:.1f},{TOP + (HEIGHT - TOP - GAP) * (1 - share):.1f}"
            for update, share in curve
        )
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "\n".join(parts)


def draw(page: str, runs: dict[str, Rows], evaluations: dict[str, Rows]) -> None:
    """Write the figure: wins and legal moves by update, one line per run.

    Wins are those of training games, or of evaluation games where a page's runs play no such training games.
    """
    last = max(int(row["update"]) for rows in runs.values() for row in rows)
    wins = []
    for rows in runs.values():
        rates = [(int(row["update"]), win_rate(rows, index)) for index, row in enumerate(rows)]
        wins.append([(update, rate) for update, rate in rates if rate is not None])
    kind = "training"
    if not any(wins):
        kind = "evaluation"
        wins = [
            [
                (int(row["update"]), int(row["wins"]) / int(row["games"]))
                for row in evaluations.get(name, [])
                if row["opponent"] == _AGAINST
            ]
            for name in runs
        ]
    legal = [
        [(int(row["update"]), float(row["legal"])) for row in rows if row["legal"]] for rows in runs.values()
    ]
    names = "".join(
        f'<tspan fill="{COLOURS[number % len(COLOURS)]}" dx="12">{name}</tspan>'
        for number, name in enumerate(runs)
    )
    (PICTURES / f"{page}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH + 26} {HEIGHT + 22}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>\n'
        + panel(f"{kind} games won against {_AGAINST}", wins, last, LEFT)
        + "\n"
        + panel("legal moves, by update", legal, last, LEFT + WIDTH + 10)
        + f'\n<text x="{LEFT - 12}" y="{HEIGHT + 14}">{names}</text>\n</svg>\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    wanted, *recorded = sys.argv[1:]
    if recorded:
        record(wanted, dict(argument.split("=", 1) for argument in recorded))
    draw(wanted, read(wanted), read(f"{wanted}-evaluations"))
