"""Rate a run's games anew, with other parameters or by another system, and report the differences.

Outcomes come from the archive's columns, or from any log through the port. The recorded ratings do not
change. The new ones are a labelled set beside the archive (:mod:`unstable_stream.archive.what_if`).
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import numpy as np

from unstable_stream.archive import query
from unstable_stream.archive.game_columns import SeatColumns, archived_parents, archived_seats
from unstable_stream.archive.what_if import LabelledSet
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.events import GameOutcome, Rating
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.events.run_ids import pick_run
from unstable_stream.hindsight.rating_set import Rater, Rerated, Scopes, UsedRating
from unstable_stream.log.port import EventLog
from unstable_stream.model_pool.rating_columns import GameColumns, Names
from unstable_stream.model_pool.systems import RatingSystem
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.overlay import as_recorded
from unstable_stream.runs.starts import run_events

__all__ = ["find_archived_run", "rerate_from_archive", "rerate_from_log"]

_CHUNK_GAMES: Final = 20_000
_ALL: Final = Scopes()


def rerate_from_archive(
    path: ArchiveAddress,
    run_id: str,
    system: RatingSystem,
    scopes: Scopes = _ALL,
    out: LabelledSet | None = None,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> Rerated:
    """Rate a run's archived games anew; ``run_id`` is the full id, ``on_progress`` told games done, and all.

    Raises:
        ArchiveBusyError: another process held the archive past the deadline.
        ArchiveError: there is no archive.
    """
    rater = Rater(run_id, system, scopes, out)
    parents = archived_parents(path, run_id)
    # Read all columns first, about 60 bytes a game: while they are read, the archive cannot be written.
    chunks = list(archived_seats(path, run_id))
    games, done = sum(len(chunk.game_ids) for chunk in chunks), 0
    for chunk in chunks:
        rater.rate(_columns(chunk, rater.names, parents), chunk.game_ids)
        done += len(chunk.game_ids)
        on_progress(done, games)
    rows = query(
        path,
        "SELECT env_id, model_uid, arg_max(mu, games), arg_max(sigma, games), max(games) FROM ratings "
        "WHERE run_id = ? GROUP BY env_id, model_uid",
        [run_id],
    ).rows
    used = {(env, uid): UsedRating(mu, sigma, games) for env, uid, mu, sigma, games in rows}
    return rater.finish(used, "archive")


def _columns(chunk: SeatColumns, names: Names, parents: Mapping[str, str | None]) -> GameColumns:
    models = [
        names.model(uid, version, parents.get(uid))
        for uid, version in zip(chunk.models.values, chunk.versions, strict=True)
    ]
    envs = [names.env(env_id) for env_id in chunk.envs.values]
    return GameColumns(
        envs=np.array(envs)[chunk.envs.codes].tolist(),
        starts=chunk.starts.tolist(),
        models=np.array(models)[chunk.models.codes].tolist(),
        ranks=chunk.ranks.tolist(),
        teams=chunk.teams.tolist() if chunk.teams.max(initial=-1) >= 0 else None,
    )


async def rerate_from_log(
    log: EventLog, run_id: str, system: RatingSystem, scopes: Scopes = _ALL, out: LabelledSet | None = None
) -> Rerated:
    """Rate a run's games on a log anew; ``run_id`` is the full id."""
    rater = Rater(run_id, system, scopes, out)
    seen: dict[str, IndexSet] = {}
    chunk = _Chunk(rater)
    async for _, event in run_events(log, (GameOutcome.TOPIC,), run_id):
        # Do the same as the rating processor: a game counts once, and a game without seats does not count.
        if (
            isinstance(event, GameOutcome)
            and event.seats
            and seen.setdefault(event.split, IndexSet()).add(event.game_index)
        ):
            chunk.add(event)
    chunk.flush()
    used: dict[tuple[str, str], UsedRating] = {}
    async for _, event in run_events(log, (Rating.TOPIC,), run_id):
        if isinstance(event, Rating):
            key = (event.env_id, event.model_uid)
            if key not in used or used[key].games < event.games:
                used[key] = UsedRating(event.mu, event.sigma, event.games)
    return rater.finish(used, "log")


class _Chunk:
    """Outcomes that are gathered into columns."""

    def __init__(self, rater: Rater) -> None:
        self._rater = rater
        self._clear()

    def _clear(self) -> None:
        self._ids: list[str] = []
        self._envs: list[int] = []
        self._starts = [0]
        self._models: list[int] = []
        self._ranks: list[int] = []
        self._teams: list[int] = []

    def add(self, outcome: GameOutcome) -> None:
        names = self._rater.names
        self._ids.append(outcome.game_id)
        self._envs.append(names.env(outcome.env_id))
        for seat in outcome.seats:
            self._models.append(names.model(seat.model_uid, seat.policy_version, seat.parent_uid))
            self._ranks.append(seat.rank)
            self._teams.append(-1 if seat.team is None else seat.team)
        self._starts.append(len(self._models))
        if len(self._ids) >= _CHUNK_GAMES:
            self.flush()

    def flush(self) -> None:
        teams = self._teams if max(self._teams, default=-1) >= 0 else None
        self._rater.rate(GameColumns(self._envs, self._starts, self._models, self._ranks, teams), self._ids)
        self._clear()


def find_archived_run(path: ArchiveAddress, run_id: str) -> tuple[str, RunConfig]:
    """Return a run's full id and configuration; ``run`` is its id or an unambiguous prefix.

    Raises:
        ArchiveError: there is no archive.
        RunError: no such run, or several; lists what is there.
    """
    rows = query(
        path,
        "SELECT run_id, config FROM run_events WHERE config IS NOT NULL "
        "ORDER BY run_id, coalesce(resumption, 0)",
    ).rows
    configs = dict(rows)
    full_id = pick_run(run_id, configs, str(path))
    recorded = as_recorded(msgspec.json.decode(configs[full_id]))
    return full_id, parse_config(recorded, recorded=True, origin=f"run {full_id}")
