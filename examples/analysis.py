"""What happened in a data directory, cell by cell: a notebook that also runs as a plain script.

    python examples/analysis.py unstable-data
    python examples/analysis.py unstable-data --html curve.html      # also plots, if plotly is installed

Editors that know ``# %%`` cells (VS Code, PyCharm, Spyder; Jupyter through jupytext) run them one by one. It
works on finished and on running runs: SQL waits its turn while a run writes.
"""

# %% Where the data is
import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unstable_stream.archive import query

parser = argparse.ArgumentParser(description="Analyse the runs of a data directory.")
parser.add_argument("data", nargs="?", type=Path, default=Path("unstable-data"), help="data directory")
parser.add_argument("--html", type=Path, help="write the plot to this file")
in_notebook = "ipykernel" in sys.modules
options = parser.parse_args([] if in_notebook else None)  # a notebook's command line is its kernel's
archive = options.data / "archive.duckdb"


def show(title: str, sql: str, **parameters: object) -> list[dict[str, Any]]:
    """Run a query, print its rows as a table and return them."""
    result = query(archive, sql, parameters or None)
    rows = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in result.rows]
    cells = [list(result.columns), *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for line in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    return result.dicts()


# %% The runs, the latest first
runs = show(
    "Runs",
    "SELECT run_id, state, started_at, games_finished AS games, steps_trained FROM runs "
    "LEFT JOIN ledger USING (run_id) ORDER BY started_at DESC",
)
if not runs:
    sys.exit("no run in this archive yet")
run = runs[0]["run_id"]

# %% Does it learn? How the checkpoints do in evaluation, with the 95 % interval
curve = show(
    f"Learning curve of {run}",
    "SELECT env_id, policy_version AS update, games, win_rate, win_rate_low AS low, win_rate_high AS high, "
    "mean_reward FROM learning_curve WHERE run_id = $run AND split = 'eval' ORDER BY env_id, update",
    run=run,
)

# %% Against whom, and from which seat?
show(
    "First and last evaluated checkpoint by seat and opponent",
    "SELECT policy_version AS update, seat, opponent, games, win_rate, win_rate_low AS low, "
    "win_rate_high AS high FROM win_rates WHERE run_id = $run AND split = 'eval' "
    "AND policy_version IN (SELECT unnest([min(policy_version), max(policy_version)]) FROM learning_curve "
    "WHERE run_id = $run AND split = 'eval') ORDER BY opponent, seat, update",
    run=run,
)

# %% The ladder
show(
    "Top of the ladder",
    "SELECT env_id, model_uid, conservative, mu, sigma, games FROM rating_ladder "
    "WHERE run_id = $run AND env_id <> '*' ORDER BY conservative DESC LIMIT 10",
    run=run,
)

# %% Is the training healthy? Staleness, importance ratios, lengths
show(
    "Updates",
    "SELECT update, steps, mean_completion_tokens AS tokens, truncated_rate AS cut, "
    "s.mean_staleness AS stale, mean_ratio, max_ratio, approx_kl "
    "FROM completion_lengths JOIN staleness AS s USING (run_id, update) "
    "JOIN importance_ratios USING (run_id, update) WHERE run_id = $run ORDER BY update DESC LIMIT 10",
    run=run,
)

# %% What did it cost to get there? Where no view has the answer, ask the tables
show(
    "Games and sampled tokens up to each tenth update",
    "SELECT update, (SELECT count(*) FROM game_outcomes AS g WHERE g.run_id = u.run_id "
    "AND g.finished_at <= u.occurred_at) AS games, (SELECT sum(completion_tokens) FROM trajectories AS t "
    "WHERE t.run_id = u.run_id AND t.finished_at <= u.occurred_at) AS tokens "
    "FROM updates AS u WHERE run_id = $run AND (update % 10 = 0 OR update = 1) ORDER BY update",
    run=run,
)

# %% The curve as a plot
if options.html and not find_spec("plotly"):
    print("\nno plot: pip install plotly")
elif options.html or in_notebook:
    import plotly.graph_objects as go

    figure = go.Figure(layout={"title": f"Win rate of {run}", "yaxis": {"range": [0, 1]}})
    for env in dict.fromkeys(row["env_id"] for row in curve):
        rows = [row for row in curve if row["env_id"] == env]
        rates = [row["win_rate"] for row in rows]
        figure.add_scatter(
            x=[row["update"] for row in rows],
            y=rates,
            name=str(env),
            mode="lines+markers",
            error_y={
                "array": [row["high"] - rate for row, rate in zip(rows, rates, strict=True)],
                "arrayminus": [rate - row["low"] for row, rate in zip(rows, rates, strict=True)],
            },
        )
    figure.update_xaxes(title="learner update")
    figure.update_yaxes(title="share of evaluation games won")
    if in_notebook:
        figure.show()
    else:
        figure.write_html(options.html)
        print(f"\nplot: {options.html}")
