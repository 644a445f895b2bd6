"""List the runs of an archive: state, progress, win rate, speed, trouble; or how far one is."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from unstable_stream.archive import query
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.runs.life import silence_of, state_of

_RECENT_S: Final = 120
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
    SELECT run_id, sum(updates)::BIGINT AS updates, min(last_update) AS last_update, max(last_at) AS last_at
    FROM (
        SELECT run_id, count(*) AS updates, max("update") AS last_update, max(occurred_at) AS last_at
        FROM updates GROUP BY run_id, model
    ) GROUP BY run_id
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
    r.parent_run_id, r.parent_update, r.trains, r.config->>'$.note' AS note
FROM runs AS r
LEFT JOIN played AS p USING (run_id)
LEFT JOIN recent AS n USING (run_id)
LEFT JOIN spoken AS s USING (run_id)
LEFT JOIN learned AS u USING (run_id)
LEFT JOIN heard AS h USING (run_id)
LEFT JOIN letters AS d USING (run_id)
LEFT JOIN signs USING (run_id)
"""
# Most of the work is in the curves, so who asks for one run's standing is spared them.
_RUNS: Final = f"""
WITH standings AS ({_STANDINGS}), curves AS (
    SELECT run_id, list(win_rate ORDER BY policy_version) AS curve,
        arg_max(win_rate, policy_version) AS win_rate
    FROM (
        SELECT run_id, policy_version, sum(win_rate * games) / sum(games) AS win_rate
        FROM learning_curve WHERE split = 'eval' GROUP BY run_id, policy_version
    ) GROUP BY run_id
)
SELECT s.*, coalesce(c.curve, []) AS curve, c.win_rate
FROM standings AS s LEFT JOIN curves AS c USING (run_id)
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

    curve: Sequence[float]
    """Evaluated win rate of its checkpoints, in order, 0 to 1."""
    win_rate: float | None
    """That of the latest."""


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
    rows = query(archive, f"FROM ({_STANDINGS}) WHERE run_id = $run", {"run": run_id}).rows
    return RunStanding(*rows[0]) if rows else None


def list_runs(archive: ArchiveAddress) -> list[RunLine]:
    """Return the archived runs: those that train, then evaluations and the like; the newest of each first.

    Raises:
        ArchiveError: there is no archive.
    """
    return [RunLine(*row) for row in query(archive, _RUNS).rows]  # columns in the order of the fields
