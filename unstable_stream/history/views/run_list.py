"""List the runs of an archive: state, progress, win rate, speed, trouble; or how far one is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from unstable_stream.archive import query
from unstable_stream.history.views.results import Telling, read_telling
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.runs.life import silence_of, state_of

_RECENT_S: Final = 120
_RECENT_UPDATES: Final = 20
"""As in :class:`~unstable_stream.runs.run_view.RunView`."""
_STANDINGS: Final = f"""
WITH played AS (
    SELECT run_id, count(*) AS games, max(finished_at) AS last_at FROM game_outcomes GROUP BY run_id
), recent AS (
    SELECT o.run_id, count(*) AS games
    FROM game_outcomes AS o JOIN played AS p USING (run_id)
    WHERE o.finished_at > p.last_at - INTERVAL {_RECENT_S} SECOND GROUP BY o.run_id
), spoken AS (
    SELECT t.run_id, sum(t.completion_tokens)::BIGINT AS tokens
    FROM trajectories AS t JOIN played AS p USING (run_id)
    WHERE t.finished_at > p.last_at - INTERVAL {_RECENT_S} SECOND GROUP BY t.run_id
), learned AS (
    -- Of several trained models the one behind says how far the run is.
    SELECT run_id, sum(updates)::BIGINT AS updates, min(last_update) AS last_update, max(last_at) AS last_at,
        count(*) AS models, sum(last_update) AS done
    FROM (
        SELECT run_id, count(*) AS updates, max("update") AS last_update, max(occurred_at) AS last_at
        FROM updates GROUP BY run_id, model
    ) GROUP BY run_id
), pace AS (
    -- A pause before a resumption is no work.
    SELECT run_id, (epoch(max(occurred_at)) - epoch(min(occurred_at))) / (count(*) - 1) AS seconds
    FROM (
        SELECT run_id, occurred_at FROM updates LEFT JOIN (
            SELECT run_id, max(occurred_at) AS began
            FROM run_events WHERE type = 'run-resumed' GROUP BY run_id
        ) USING (run_id)
        WHERE began IS NULL OR occurred_at > began
        QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY occurred_at DESC) <= {_RECENT_UPDATES}
    ) GROUP BY run_id HAVING count(*) > 1
), letters AS (
    SELECT run_id, count(*) AS letters, arg_max(reason, occurred_at) AS reason
    FROM dead_letters GROUP BY run_id
), heard AS (
    -- Launchers report each minute, also when no game ends for long.
    SELECT run_id, max(occurred_at) AS last_at
    FROM metrics SEMI JOIN (SELECT run_id FROM runs WHERE state = 'running') USING (run_id) GROUP BY run_id
), signs AS (
    SELECT run_id, arg_max(text, occurred_at) AS text FROM collapse_warnings GROUP BY run_id
)
SELECT
    r.run_id, r.name, r.state, r.started_at, r.finished_at,
    greatest(r.started_at, p.last_at, u.last_at, h.last_at, r.finished_at) AS last_at,
    coalesce(p.games, 0) AS games, coalesce(u.updates, 0) AS updates,
    coalesce(u.last_update, r.parent_update, 0) AS last_update,
    try_cast(r.config->>'$.learner.iterations' AS BIGINT) AS iterations,
    n.games / greatest(1, least({_RECENT_S}, epoch(p.last_at) - epoch(r.started_at))) AS games_per_s,
    s.tokens / greatest(1, least({_RECENT_S}, epoch(p.last_at) - epoch(r.started_at))) AS tokens_per_s,
    coalesce(
        CASE WHEN r.state = 'failed' THEN coalesce(r.reason, 'it failed without a reason') END,
        signs.text,
        CASE WHEN d.letters > 0 THEN format('{{}} rejected: {{}}', d.letters, d.reason) END
    ) AS trouble,
    r.parent_run_id, r.parent_update, r.trains, r.config->>'$.note' AS note,
    -- A trained model without an update of its own has all of them before it.
    greatest(1, coalesce(json_array_length(r.config->'$.trained_models'), 0)) AS models,
    e.seconds * greatest(0, models * (iterations - coalesce(r.parent_update, 0))
        - (u.done - u.models * coalesce(r.parent_update, 0))) AS seconds_left
FROM runs AS r
LEFT JOIN played AS p USING (run_id)
LEFT JOIN recent AS n USING (run_id)
LEFT JOIN spoken AS s USING (run_id)
LEFT JOIN learned AS u USING (run_id)
LEFT JOIN pace AS e USING (run_id)
LEFT JOIN heard AS h USING (run_id)
LEFT JOIN letters AS d USING (run_id)
LEFT JOIN signs USING (run_id)
"""
# The owner of a run: of a fork and an evaluation it is in the record; it has played the game of a branch, and
# made the first checkpoint that plays in a tournament or in games between several.
_RUNS: Final = f"""
WITH standings AS ({_STANDINGS}), used AS (
    SELECT run_id, sum(cpu_s) AS cpu_s, sum(gpu_s) AS gpu_s FROM costs WHERE part IS NULL GROUP BY run_id
), belonging AS (
    SELECT r.run_id,
        r.config->>'$.evaluation.branch.game_id' AS branched,
        CASE
            WHEN r.trains AND r.parent_run_id IS NULL THEN 'run'
            WHEN r.trains AND r.parent_update IS NULL THEN 'learned again'
            WHEN r.trains THEN 'fork'
            WHEN branched IS NOT NULL THEN 'branch'
            WHEN r.name = 'play' OR starts_with(r.name, 'play-') THEN 'play'
            WHEN r.config->>'$.evaluation.round_robin' = 'true' THEN 'tournament'
            ELSE 'evaluation'
        END AS kind,
        list_filter(
            r.config->>'$.evaluation.opponents[*].name', lambda name: contains(name, '@')
        )[1] AS met,
        coalesce(
            r.parent_run_id, o.run_id, CASE WHEN NOT r.trains THEN split_part(met, '@', 1) END
        ) AS owner
    FROM runs AS r LEFT JOIN game_outcomes AS o ON o.game_id = r.config->>'$.evaluation.branch.game_id'
)
SELECT s.* EXCLUDE (models), b.kind, b.owner, u.cpu_s, u.gpu_s
FROM standings AS s JOIN belonging AS b USING (run_id) LEFT JOIN used AS u USING (run_id)
ORDER BY s.trains DESC, s.started_at DESC, s.run_id
"""


@dataclass(frozen=True, slots=True)
class RunStanding:
    """One run: its state, progress, speed and trouble."""

    run_id: str
    name: str
    recorded_state: str
    """``running``, ``completed``, ``stopped`` or ``failed``; killed without a word, it stays ``running``."""
    started_at: datetime
    finished_at: datetime | None
    last_at: datetime
    """The last that was heard of it."""
    games: int
    """Finished games."""
    updates: int
    last_update: int
    """The number of its newest update; of a fork without any, the update it was forked at."""
    iterations: int | None
    """The update it is to end at."""
    games_per_s: float | None
    """Mean over the last two minutes in which it played."""
    tokens_per_s: float | None
    trouble: str | None
    """The reason of a failure, the last sign of a collapse, or the last rejected record."""
    parent_run_id: str | None
    parent_update: int | None
    trains: bool
    """Whether it makes updates of its own: false for evaluations, tournaments and games of people."""
    note: str | None
    """The key ``note`` of its configuration; ``None``: of a run that was recorded without it."""
    seconds_left: float | None
    """Seconds of its remaining updates at the pace of the latest; ``None``: it has made fewer than two."""

    @property
    def state(self) -> str:
        """The state now: the recorded one, or ``lost`` if it runs and nothing was archived of it lately."""
        return life_of(self.recorded_state, self.last_at)[0]

    @property
    def silence(self) -> str:
        """For how long a lost run has been silent, in words; empty for others."""
        return life_of(self.recorded_state, self.last_at)[1]

    @property
    def progress(self) -> float | None:
        """The share of its updates that is done, 0 to 1."""
        return min(1.0, self.last_update / self.iterations) if self.iterations else None


@dataclass(frozen=True, slots=True)
class RunLine(RunStanding):
    """One run of a list."""

    kind: str
    """``run``, ``fork``, ``learned again``, ``evaluation``, ``tournament``, ``branch`` or ``play``."""
    owner: str | None
    """The run that it belongs to, which may not be in the archive."""
    cpu_s: float | None
    """CPU-seconds of all its processes; ``None``: they reported none, as in earlier versions."""
    gpu_s: float | None
    """GPU-seconds that they held GPUs for."""
    telling: Telling | None = None
    """Its results against the opponent that tells most; ``None``: it was not evaluated."""


def life_of(recorded_state: str, heard_at: datetime, now: datetime | None = None) -> tuple[str, str]:
    """Return state and silence of an archived run; see :mod:`unstable_stream.runs.life`.

    Args:
        recorded_state: of the view ``runs``.
        heard_at: the newest time of the run in the archive, UTC without a zone.
        now: with a zone; ``None``: the present.
    """
    outcome = None if recorded_state == "running" else recorded_state
    moments = heard_at.replace(tzinfo=UTC), now or datetime.now(tz=UTC)
    heard_at_ms, now_ms = (int(at.timestamp() * 1000) for at in moments)
    state = state_of(outcome, heard_at_ms, now_ms)
    return state, silence_of(state, heard_at_ms, now_ms)


def read_standing(archive: ArchiveAddress, run_id: str) -> RunStanding | None:
    """Return how far one run is, or ``None`` if the archive has no run of this id.

    Raises:
        ArchiveError: there is no archive.
    """
    standing = f"SELECT * EXCLUDE (models) FROM ({_STANDINGS}) WHERE run_id = $run"
    rows = query(archive, standing, {"run": run_id}).rows
    return RunStanding(*rows[0]) if rows else None


def list_runs(archive: ArchiveAddress) -> list[RunLine]:
    """Return the archived runs: those that train, then evaluations and the like; the newest of each first.

    Raises:
        ArchiveError: there is no archive.
    """
    telling = read_telling(archive)
    rows = query(archive, _RUNS).rows  # columns in the order of the fields
    return [replace(RunLine(*row), telling=telling.get(row[0])) for row in rows]


def families(runs: Sequence[RunLine]) -> list[list[tuple[int, RunLine]]]:
    """Group runs with those that belong to them: each family begins with the run that belongs to none.

    Returns:
        Each run with its depth below the first of its family, owners before those that belong to them; else
        in the order of ``runs``.
    """
    begun = {run.run_id: (run.started_at, run.run_id) for run in runs}
    owned: dict[str | None, list[RunLine]] = {}
    for run in runs:
        # An owner began before; so whatever was recorded, no run is its own ancestor.
        is_owned = run.owner in begun and begun[run.owner] < begun[run.run_id]
        owned.setdefault(run.owner if is_owned else None, []).append(run)
    found = []
    for first in owned.get(None, ()):
        family, waiting = [], [(0, first)]
        while waiting:
            depth, run = waiting.pop()
            family.append((depth, run))
            waiting += [(depth + 1, each) for each in reversed(owned.get(run.run_id, ()))]
        found.append(family)
    return found
