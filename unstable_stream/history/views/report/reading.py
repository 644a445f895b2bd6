"""Read from the archive the rows that a report shows."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias

from unstable_stream.archive import find_archived_run, open_archive, query
from unstable_stream.events.run_ids import LATEST
from unstable_stream.history.views.cost import USED_OVER_TIME, cost_words, run_cost
from unstable_stream.history.views.results import EVALUATED_OF_RUN, MET, RESULTS
from unstable_stream.history.views.run_list import life_of
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.runs.sweeps import Cell

Row: TypeAlias = dict[str, Any]
"""One row, by column. ``Any``: whatever Python value DuckDB makes of the column's type."""

_TIME_BINS = 40

# Seats whose results say something about a policy: the checkpoint under evaluation, or one trained on. Seats
# trained on are joined with games cut short alone, because a join of all takes most of the time.
_RESULTS = f"""
    WITH judged AS (
        {EVALUATED_OF_RUN}
        UNION ALL
        SELECT s.*, {MET} AS met, o.game_id IS NOT NULL
        FROM seats AS s LEFT JOIN (
            SELECT game_id FROM game_outcomes
            WHERE run_id = $run AND split <> 'eval' AND reason = 'truncated'
        ) AS o ON o.game_id = s.game_id
        WHERE s.run_id = $run AND s.split <> 'eval' AND s.kind = 'checkpoint' AND s.trained
            AND s.branched IS NOT TRUE
            AND met IS DISTINCT FROM s.model_uid
    )
    {RESULTS}
"""
# What the steps of each update were: one reading, since finding each step takes most of the time. The columns
# are as in the views ``completion_lengths`` and ``staleness``.
_STEPS = """
    SELECT u.model, u.update,
        avg(s.raw_reward) AS raw, avg(s.final_reward) AS final, avg(s.reward) AS step,
        avg(s.completion_tokens) AS mean_completion_tokens,
        min(s.completion_tokens) AS min_completion_tokens,
        max(s.completion_tokens) AS max_completion_tokens,
        count(*) FILTER (s.truncated) / count(*) AS truncated_rate,
        avg(u.update - 1 - s.policy_version) AS mean_staleness,
        max(u.update - 1 - s.policy_version) AS max_staleness
    FROM update_steps AS u JOIN steps AS s USING (step_id)
    WHERE u.run_id = $run AND u.fate = 'trained' GROUP BY u.model, u.update ORDER BY u.model, u.update
"""
_TOLD: Mapping[str, str] = {
    "drops": """
        SELECT reason, count(*) AS steps FROM update_steps WHERE run_id = $run AND fate = 'dropped'
        GROUP BY reason ORDER BY steps DESC
    """,
    "collapses": """
        SELECT update, began, fork_at, text FROM collapse_warnings WHERE run_id = $run
        ORDER BY update, rule LIMIT 20
    """,
    "missing": """
        SELECT topic, "partition", first_offset, next_offset - 1 AS last_offset FROM missing_of_runs
        WHERE run_id = $run ORDER BY ALL LIMIT 20
    """,
    "dead_letters": """
        SELECT consumer, topic, "partition", "offset", reason, occurred_at
        FROM dead_letters WHERE run_id IN ($run, '')
        ORDER BY occurred_at, topic, "partition", "offset" LIMIT 20
    """,
    "places": """
        SELECT occurred_at, part, change, host, reason FROM where_it_ran
        WHERE run_id = $run ORDER BY occurred_at DESC, part LIMIT 20
    """,
}
# How far a run was at each update, in the columns of ``charts.AXES``; update 0 is the start.
_CLOCK = """
    WITH done AS (
        SELECT finished_at AS moment, 1 AS games, 0 AS tokens
        FROM game_outcomes WHERE run_id = $run AND split = 'train'
        UNION ALL
        SELECT finished_at, 0, completion_tokens FROM trajectories WHERE run_id = $run
    ), summed AS (
        SELECT moment, sum(games) OVER (ORDER BY moment) AS games,
            sum(tokens) OVER (ORDER BY moment) AS tokens FROM done
    )
    SELECT 0 AS update, 0 AS games, 0 AS tokens, 0.0 AS seconds
    UNION ALL
    SELECT u.update, coalesce(s.games, 0)::BIGINT, coalesce(s.tokens, 0)::BIGINT,
        epoch(u.occurred_at) - epoch(r.started_at)
    FROM (FROM updates WHERE run_id = $run) AS u JOIN runs AS r USING (run_id)
    ASOF LEFT JOIN summed AS s ON u.occurred_at >= s.moment
"""
_CURVES: dict[str, str] = {
    "updates": """
        SELECT model, update, loss, metrics, trained_steps, dropped_steps, duration_ms
        FROM updates WHERE run_id = $run ORDER BY model, update
    """,
    "clock": _CLOCK,
}
# Of the newest rated checkpoint, over all environments if there are such ratings; of several models the mean.
_RATING = """
    SELECT avg(mu) FROM (
        SELECT arg_max(mu, (regexp_extract(model_uid, '[0-9]+$')::BIGINT, games)) AS mu FROM ratings
        WHERE run_id = $run AND regexp_matches(model_uid, '^ckpt-.*[0-9]+$') AND env_id = (
            SELECT min(env_id) FROM ratings WHERE run_id = $run  -- `*` comes before all names
        ) GROUP BY trained_model(model_uid)
    )
"""
_DRAWN: dict[str, str] = {
    "exploitability": """
        SELECT env_id, update AS version, nash_conv, uniform_nash_conv, illegal_mass FROM exploitability
        WHERE run_id = $run AND nash_conv IS NOT NULL ORDER BY env_id, version
    """,
    "ladder": "FROM rating_ladder WHERE run_id = $run ORDER BY env_id, conservative DESC",
    "ratios": "FROM importance_ratios WHERE run_id = $run ORDER BY model, update",
    "payoff": """
        SELECT model_uid, opponent_uid AS opponent, sum(games)::BIGINT AS games,
            (sum(wins) + sum(draws) / 2) / sum(games) AS score,
            sum(independent_games)::BIGINT AS independent_games,
            sum(independent_score * independent_games) / sum(independent_games) AS independent_score
        FROM payoff_matrix WHERE run_id = $run GROUP BY ALL ORDER BY model_uid, opponent
    """,
    "models": """
        SELECT model_uid, any_value(kind) AS kind, max(policy_version) AS version
        FROM seats WHERE run_id = $run GROUP BY model_uid ORDER BY version NULLS LAST, model_uid
    """,
    "steps": _STEPS,
}
_THROUGHPUT = """
    WITH done AS (
        SELECT finished_at AS moment, 1 AS games, 0 AS tokens, 0 AS steps
        FROM game_outcomes WHERE run_id = $run
        UNION ALL
        SELECT finished_at, 0, completion_tokens, 0 FROM trajectories WHERE run_id = $run
        UNION ALL
        SELECT occurred_at, 0, 0, trained_steps FROM updates WHERE run_id = $run
    )
    , binned AS (
        SELECT floor((epoch(moment) - epoch($start::TIMESTAMP)) / $bin)::BIGINT AS bin,
            sum(games) AS games, sum(tokens) AS tokens, sum(steps) AS steps
        FROM done GROUP BY bin
    ), every AS (SELECT unnest(generate_series(min(bin), max(bin))) AS bin FROM binned)
    SELECT bin * $bin AS second, coalesce(games, 0) / $bin AS games, coalesce(tokens, 0) / $bin AS tokens,
        coalesce(steps, 0) / $bin AS steps
    FROM every LEFT JOIN binned USING (bin) ORDER BY bin
"""
_LADDER_OVER_TIME = """
    SELECT model_uid, floor((epoch(occurred_at) - epoch($start::TIMESTAMP)) / $bin) * $bin AS second,
        arg_max(mu, games) AS mu, arg_max(mu - sigma, games) AS low, arg_max(mu + sigma, games) AS high
    FROM ratings WHERE run_id = $run AND env_id = $env GROUP BY model_uid, second ORDER BY model_uid, second
"""
_TOTALS = """
    SELECT l.*,
        (SELECT count(*) FROM game_outcomes WHERE run_id = $run AND split = 'train') AS train_games,
        (SELECT count(*) FROM game_outcomes WHERE run_id = $run AND split = 'eval') AS eval_games,
        (SELECT sum(num_turns)::BIGINT FROM game_outcomes WHERE run_id = $run) AS turns,
        (SELECT sum(completion_tokens)::BIGINT FROM trajectories WHERE run_id = $run) AS tokens,
        (SELECT count(*) FROM updates WHERE run_id = $run) AS updates,
        (SELECT count(*) FROM checkpoints WHERE run_id = $run) AS checkpoints,
        (SELECT any_value(base_model) FROM checkpoints WHERE run_id = $run) AS base_model,
        (SELECT list_sort(list(DISTINCT CASE WHEN parameters = 'all' THEN 'all parameters trained'
            ELSE 'with a LoRA adapter of rank ' || coalesce(lora->>'$.lora_rank', lora->>'$.r', '?') END))
            FROM checkpoints WHERE run_id = $run AND path IS NOT NULL) AS trained,
        (SELECT count(*) FROM dead_letters WHERE run_id IN ($run, '')) AS dead_letters,
        (SELECT list_sort(list(DISTINCT env_id)) FROM game_starts WHERE run_id = $run) AS env_ids,
        (SELECT min(finished_at) FROM game_outcomes WHERE run_id = $run) AS first_game_at,
        greatest(
            (SELECT max(finished_at) FROM game_outcomes WHERE run_id = $run),
            (SELECT max(occurred_at) FROM updates WHERE run_id = $run),
            (SELECT max(occurred_at) FROM metrics WHERE run_id = $run)
        ) AS last_at
    FROM (SELECT 1) LEFT JOIN (FROM ledger WHERE run_id = $run) AS l ON true
"""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Everything that a report shows of a run, except games. The query of the same name fills each list."""

    run_id: str
    label: str
    """Short name, unique within the report."""
    about: Row
    """The run's row of the view ``runs``."""
    totals: Row
    config: Mapping[str, Any]
    """Resolved configuration. ``Any``: JSON."""
    started_at: datetime
    duration_s: float
    """To its end, or to the last that was heard of it."""
    bin_s: float
    """Width of a bar in charts over time, seconds."""
    heard_at: datetime
    """The end, or the last that was heard of it."""
    drops: Sequence[Row]
    collapses: Sequence[Row]
    """Warnings of a collapse."""
    dead_letters: Sequence[Row]
    missing: Sequence[Row]
    """Ranges of offsets that may be of the run and that the archive lacks."""
    cost: Mapping[str, str] = field(default_factory=dict)
    """Its cost in words, by title."""
    cpu_s: float | None = None
    """CPU-seconds of its processes; ``None``: they reported nothing."""
    places: Sequence[Row] = ()
    """The latest changes of what computes on which machine."""
    rated_env: str = "*"
    """The environment whose ratings are shown; ``*`` (all together) if the run has such ratings."""
    opponents: Sequence[Row] = ()
    curve: Sequence[Row] = ()
    rating: float | None = None
    """Of its newest rated checkpoint: mean skill, TrueSkill points; ``None``: nothing is rated."""
    updates: Sequence[Row] = ()
    clock: Sequence[Row] = ()
    """Its progress at each update: training games, sampled tokens and seconds since the start."""
    steps: Sequence[Row] = ()
    """Rewards, completions and staleness of the steps that each update trained on."""
    exploitability: Sequence[Row] = ()
    ratios: Sequence[Row] = ()
    ladder: Sequence[Row] = ()
    ladder_over_time: Sequence[Row] = ()
    payoff: Sequence[Row] = ()
    models: Sequence[Row] = ()
    throughput: Sequence[Row] = ()
    used: Sequence[Row] = ()
    """The rows of :data:`cost.USED_OVER_TIME`."""

    @property
    def life(self) -> tuple[str, str]:
        """The state now, and the reason of the end or, of a lost run, for how long it has been silent."""
        state, silence = life_of(self.about["state"], self.heard_at)
        return state, silence or self.about["reason"] or ""


@dataclass(frozen=True, slots=True)
class Change:
    """Win rate of the first and of the last policy that met an opponent in the evaluation."""

    env_id: str
    opponent: str
    before: Row
    after: Row
    low: float
    """Lower bound of the 95 % interval of the difference of the two win rates."""
    high: float

    @property
    def difference(self) -> float:
        """Win rate after minus before, -1 to 1."""
        return float(self.after["win_rate"] - self.before["win_rate"])


def find_runs(archive: ArchiveAddress, wanted: Sequence[str]) -> list[str]:
    """Return the ids of the runs that are meant: all of a sweep, or see :func:`pick_run`.

    None is the newest that trains.

    Raises:
        RunError: one means no run, or several; lists what is there.
    """
    of_sweeps = sweeps(archive)
    with open_archive(archive) as connection:
        found = [of_sweeps.get(word) or [find_archived_run(connection, word)] for word in wanted or [LATEST]]
    return list(dict.fromkeys(run_id for runs in found for run_id in runs))


def sweeps(archive: ArchiveAddress) -> dict[str, list[str]]:
    """Return the ids of the runs of each sweep, in the order in which they began; the newest sweep first."""
    rows = query(archive, "SELECT sweep, run_id FROM runs WHERE sweep IS NOT NULL ORDER BY started_at").rows
    found: dict[str, list[str]] = {}
    for sweep, run_id in rows:
        found.setdefault(sweep, []).append(run_id)
    return dict(reversed(found.items()))


def labels_of(archive: ArchiveAddress, run_ids: Sequence[str]) -> list[str]:
    """Return each run's name, of one of a sweep its seed and values; or its id where others have the same."""
    names = {
        run: Cell(seed, varied).label if sweep else name
        for run, name, sweep, seed, varied in query(
            archive, "SELECT run_id, name, sweep, seed, varied FROM runs"
        ).rows
    }
    found = [names.get(run) or run for run in run_ids]
    return found if len(set(found)) == len(found) else list(run_ids)


def read_run(archive: ArchiveAddress, run_id: str, label: str) -> RunFacts:
    """Return everything that a report shows of one run, except its games."""
    return with_charts(archive, with_results(archive, read_summary(archive, run_id, label)))


def read_summary(archive: ArchiveAddress, run_id: str, label: str) -> RunFacts:
    """Return what is told of a run before its results and charts, whose rows are missing."""
    run = {"run": run_id}
    (about,) = query(archive, "FROM runs WHERE run_id = $run", run).dicts()
    (totals,) = query(archive, _TOTALS, run).dicts()
    last = about["finished_at"] or totals["last_at"] or about["started_at"]
    duration_s = max(0.0, (last - about["started_at"]).total_seconds())
    return RunFacts(
        run_id=run_id,
        label=label,
        about=about,
        totals=totals,
        config=json.loads(about["config"] or "{}"),
        started_at=about["started_at"],
        duration_s=duration_s,
        heard_at=last,
        bin_s=_bin_width(duration_s),
        **_rows(archive, _TOLD, run_id),
    )


def with_results(archive: ArchiveAddress, summary: RunFacts) -> RunFacts:
    """Return the summary of a run with what its policies won and lost, and what it cost."""
    cost = run_cost(archive, summary.run_id)
    results = read_results(archive, summary.run_id)
    ((rating,),) = query(archive, _RATING, {"run": summary.run_id}).rows
    return replace(
        summary,
        cost=cost_words(cost),
        cpu_s=cost.used.cpu_s if cost.used else None,
        rating=rating,
        opponents=[row for row in results if not row["together"]],
        curve=[row for row in results if row["together"]],
    )


def read_results(archive: ArchiveAddress, run_id: str) -> list[Row]:
    """Return what the policies of a run won and lost: against each opponent in evaluation, and together."""
    return query(archive, _RESULTS, {"run": run_id}).dicts()


def with_curves(archive: ArchiveAddress, results: RunFacts) -> RunFacts:
    """Return the results of a run with what its learner measured, and how far the run was at each update."""
    return replace(results, **_rows(archive, _CURVES, results.run_id))


def _rows(archive: ArchiveAddress, queries: Mapping[str, str], run_id: str) -> dict[str, Any]:
    """``Any``: each value is the rows of the field of its name."""
    return {name: query(archive, sql, {"run": run_id}).dicts() for name, sql in queries.items()}


def with_charts(archive: ArchiveAddress, results: RunFacts) -> RunFacts:
    """Return the results of a run with the rows of all charts."""
    run = {"run": results.run_id}
    rows = _rows(archive, _CURVES | _DRAWN, results.run_id)
    environments = {row["env_id"] for row in rows["ladder"]}
    rated_env = "*" if "*" in environments else min(environments, default="*")
    since = {"start": results.started_at} | run
    over_time = {"bin": results.bin_s} | since
    return replace(
        results,
        rated_env=rated_env,
        ladder_over_time=query(archive, _LADDER_OVER_TIME, over_time | {"env": rated_env}).dicts(),
        throughput=query(archive, _THROUGHPUT, over_time).dicts(),
        used=query(archive, USED_OVER_TIME, since).dicts(),
        **rows,
    )


def _bin_width(duration_s: float) -> float:
    """Return a round number of seconds that makes at most ``_TIME_BINS`` bins."""
    at_least = max(duration_s / _TIME_BINS, 1.0)
    widths = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
    return next((width for width in widths if width >= at_least), math.ceil(at_least / 3600) * 3600.0)


def before_and_after(facts: RunFacts) -> list[Change]:
    """Compare the first with the last evaluated policy, opponent by opponent."""
    pairs: dict[tuple[str, str], list[Row]] = {}
    for row in facts.opponents:
        by_model = f" by {row['model']}" if row["model"] else ""
        pairs.setdefault((row["env_id"], f"{row['opponent']}{by_model}"), []).append(row)
    return [
        Change(env_id, opponent, rows[0], rows[-1], *_difference(rows[0], rows[-1]))
        for (env_id, opponent), rows in pairs.items()
        if len(rows) > 1
    ]


def _difference(before: Row, after: Row) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two independent proportions.

    From their Wilson intervals: Newcombe (1998), Statistics in Medicine 17, 873-890, method 10.
    """
    difference = after["win_rate"] - before["win_rate"]
    down = math.hypot(after["win_rate"] - after["low"], before["high"] - before["win_rate"])
    up = math.hypot(after["high"] - after["win_rate"], before["win_rate"] - before["low"])
    return difference - down, difference + up
