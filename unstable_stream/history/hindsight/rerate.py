"""Rate a run's games anew, with other parameters or by another system, and report the differences.

Outcomes come from the archive's columns, or from any log through the port. The recorded ratings do not
change. The new ones are a labelled set beside the archive (:mod:`unstable_stream.archive.what_if`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np

from unstable_stream.archive import query
from unstable_stream.archive.game_columns import Coded, SeatColumns, archived_parents, archived_seats
from unstable_stream.archive.what_if import LabelledSet
from unstable_stream.events import OVERALL, GameOutcome, Rating
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.events.run_ids import pick_run
from unstable_stream.log.port import EventLog
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.model_pool.rating_columns import GameColumns, Names, RatingHistory
from unstable_stream.model_pool.ratings import Ratings
from unstable_stream.model_pool.systems import RatingSystem
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.overlay import as_recorded
from unstable_stream.runs.starts import run_events
from unstable_stream.version import __version__

_RATINGS: Final = {
    "run_id": "VARCHAR",
    "env_id": "VARCHAR",
    "model_uid": "VARCHAR",
    "mu": "DOUBLE",
    "sigma": "DOUBLE",
    "games": "INTEGER",
    "game_id": "VARCHAR",
}
COLUMN_TYPES: Final[Mapping[object, str]] = {
    str: "VARCHAR",
    str | None: "VARCHAR",
    int: "INTEGER",
    int | None: "INTEGER",
    float: "DOUBLE",
    float | None: "DOUBLE",
}
"""DuckDB's types of columns by those of fields."""


@dataclass(frozen=True, slots=True)
class Scopes:
    """The ratings to compute: one for each environment, one over all environments, or both."""

    per_env: bool = True
    overall: bool = True


@dataclass(frozen=True, slots=True)
class UsedRating:
    """A recorded rating."""

    mu: float
    sigma: float
    games: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One model's new rating beside the used one."""

    env_id: str
    """``*`` for all environments together."""
    rank: int
    model_uid: str
    mu: float
    sigma: float | None
    """``None``: the system has no uncertainty."""
    games: int
    rank_used: int | None
    """The rank by ``mu - 3 sigma``; ``None``: never rated."""
    mu_used: float | None
    sigma_used: float | None
    games_used: int | None


_LADDER: Final = {"run_id": "VARCHAR"} | {each.name: COLUMN_TYPES[each.type] for each in fields(Compared)}


@dataclass(frozen=True, slots=True)
class Rerated:
    """The result of a rerate."""

    run_id: str
    system: str
    parameters: Mapping[str, Any]
    source: str
    """``archive`` or ``log``."""
    games: int
    rated: int
    """The number of games between different models."""
    seconds: float
    models: Sequence[Compared]
    """Sorted by environment, overall first, then by new rank."""

    @property
    def changed(self) -> int:
        """Return the models whose rating or rank has changed."""
        return sum(
            (each.rank, each.mu, each.sigma, each.games)
            != (each.rank_used, each.mu_used, each.sigma_used, each.games_used)
            for each in self.models
        )


class Rater:
    """The fold, and the labelled set of its results."""

    def __init__(self, run_id: str, system: RatingSystem, scopes: Scopes, out: LabelledSet | None) -> None:
        self.names = Names()
        self._run_id = run_id
        self._system = system
        self._scopes = scopes
        self._ratings = Ratings(self.names, system, per_env=scopes.per_env, overall=scopes.overall)
        self._out = out
        self._began = time.perf_counter()

    def rate(self, games: GameColumns, game_ids: Sequence[str]) -> None:
        """Rate the next games."""
        if self._out is None:
            self._ratings.apply(games)
            return
        history = RatingHistory()
        self._ratings.apply(games, history)
        game, scope, model, mu, sigma, rated = history.columns()
        self._out.write(
            "ratings",
            _RATINGS,
            {
                "run_id": Coded(np.zeros(len(mu), dtype=np.int32), [self._run_id]),
                "env_id": Coded(scope.astype(np.int32) + 1, [OVERALL, *self.names.envs]),
                "model_uid": Coded(model.astype(np.int32), self.names.models),
                "mu": mu,
                "sigma": sigma if self._system.uncertain else [None] * len(mu),
                "games": rated.astype(np.int32),
                "game_id": Coded(game.astype(np.int32), game_ids),
            },
        )

    def finish(self, used: Mapping[tuple[str, str], UsedRating], source: str) -> Rerated:
        """Compare with the recorded ratings, by environment and model; write the comparison."""
        ranks = _ranks(used)
        models = [
            Compared(
                env_id=new.env_id,
                rank=new.rank,
                model_uid=new.model_uid,
                mu=new.mu,
                sigma=new.sigma if self._system.uncertain else None,
                games=new.games,
                rank_used=ranks.get((new.env_id, new.model_uid)),
                mu_used=old.mu if old else None,
                sigma_used=old.sigma if old else None,
                games_used=old.games if old else None,
            )
            for new in self._ratings.ladder()
            for old in (used.get((new.env_id, new.model_uid)),)
        ]
        done = Rerated(
            run_id=self._run_id,
            system=self._system.name,
            parameters=self._system.parameters(),
            source=source,
            games=self._ratings.games,
            rated=self._ratings.rated,
            seconds=time.perf_counter() - self._began,
            models=models,
        )
        if self._out is not None:
            self._write(self._out, done)
        return done

    def _write(self, out: LabelledSet, done: Rerated) -> None:
        columns = {
            name: [getattr(each, name) for each in done.models] for name in _LADDER if name != "run_id"
        }
        out.write("ladder", _LADDER, {"run_id": [self._run_id] * len(done.models), **columns})
        out.about.update(
            kind="rerate",
            run_id=self._run_id,
            package_version=__version__,
            made_at=datetime.now(tz=UTC).isoformat(timespec="seconds"),
            source=done.source,
            system=done.system,
            parameters=done.parameters,
            scopes=asdict(self._scopes),
            games=done.games,
            rated=done.rated,
        )


def _ranks(used: Mapping[tuple[str, str], UsedRating]) -> dict[tuple[str, str], int]:
    """Return each model's rank in the recorded ratings of its environment: by ``mu - 3 sigma``, then name."""
    ranks: dict[tuple[str, str], int] = {}
    by_env: dict[str, list[tuple[float, str]]] = {}
    for (env_id, uid), rating in used.items():
        by_env.setdefault(env_id, []).append((-(rating.mu - 3.0 * rating.sigma), uid))
    for env_id, standing in by_env.items():
        ranks.update({(env_id, uid): rank for rank, (_, uid) in enumerate(sorted(standing), 1)})
    return ranks


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
