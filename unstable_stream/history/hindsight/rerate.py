"""Rate a run's games anew, with other parameters or by another system, and report the differences.

Outcomes come from the archive's columns, or from any log through the port. The recorded ratings do not
change. The new ones are a labelled set beside the archive (:mod:`unstable_stream.archive.what_if`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from unstable_stream.archive import find_archived_run, open_archive, query
from unstable_stream.archive.game_columns import Coded, SeatColumns, archived_parents, archived_seats
from unstable_stream.archive.what_if import LabelledSet
from unstable_stream.events import OVERALL, GameOutcome, Rating
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.log.port import EventLog
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.model_pool.rating_columns import GameColumns, Names, RatingHistory
from unstable_stream.model_pool.ratings import Ratings
from unstable_stream.model_pool.systems import RatingSystem
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.overlay import as_recorded
from unstable_stream.runs.starts import run_events

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


_Used: TypeAlias = Mapping[tuple[str, str], tuple[float, float, int]]
"""Recorded ratings by environment and model: mu, sigma, games."""


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

    def finish(self, used: _Used, source: str) -> Rerated:
        """Compare with the recorded ratings; write the comparison."""
        ranks = _ranks(used)
        models = []
        for new in self._ratings.ladder():
            key, sigma = (new.env_id, new.model_uid), new.sigma if self._system.uncertain else None
            then = used.get(key, (None, None, None))
            rank = ranks.get(key)
            models.append(
                Compared(new.env_id, new.rank, new.model_uid, new.mu, sigma, new.games, rank, *then)
            )
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
            self._out.write_rows("ladder", _LADDER, [(self._run_id, *astuple(each)) for each in models])
            told = {
                name: getattr(done, name) for name in ("source", "system", "parameters", "games", "rated")
            }
            self._out.describe("rerate", self._run_id, scopes=asdict(self._scopes), **told)
        return done


def _ranks(used: _Used) -> dict[tuple[str, str], int]:
    """Return each model's rank in the recorded ratings of its environment: by ``mu - 3 sigma``, then name."""

    def order(key: tuple[str, str]) -> tuple[str, float, str]:
        mu, sigma, _ = used[key]
        return key[0], -(mu - 3.0 * sigma), key[1]

    by_env = groupby(sorted(used, key=order), key=itemgetter(0))
    return {key: rank for _, keys in by_env for rank, key in enumerate(keys, 1)}


_CHUNK_GAMES: Final = 5_000
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
    seats = archived_seats(path, run_id)
    games = len(seats.game_ids)
    for first, chunk in _chunks(seats, rater.names, parents):
        rater.rate(chunk, seats.game_ids.slice(first, _CHUNK_GAMES))
        on_progress(min(first + _CHUNK_GAMES, games), games)
    rows = query(
        path,
        "SELECT env_id, model_uid, arg_max(mu, games), arg_max(sigma, games), max(games) FROM ratings "
        "WHERE run_id = ? GROUP BY env_id, model_uid",
        [run_id],
    ).rows
    return rater.finish({(env, uid): (mu, sigma, games) for env, uid, mu, sigma, games in rows}, "archive")


def _chunks(
    seats: SeatColumns, names: Names, parents: Mapping[str, str | None]
) -> Iterator[tuple[int, GameColumns]]:
    """Yield some games after the others, each time with the number of the first."""
    uids = zip(seats.models.values, seats.versions, strict=True)
    models = np.array([names.model(uid, version, parents.get(uid)) for uid, version in uids])
    envs = np.array([names.env(env_id) for env_id in seats.envs.values])
    for first in range(0, len(seats.game_ids), _CHUNK_GAMES):
        starts = seats.starts[first : first + _CHUNK_GAMES + 1]
        rows = slice(starts[0], starts[-1])
        teams = seats.teams[rows]
        yield (
            first,
            GameColumns(
                envs=envs[seats.envs.codes[first : first + _CHUNK_GAMES]].tolist(),
                starts=(starts - starts[0]).tolist(),
                models=models[seats.models.codes[rows]].tolist(),
                ranks=seats.ranks[rows].tolist(),
                teams=teams.tolist() if teams.max() >= 0 else None,
            ),
        )


async def rerate_from_log(
    log: EventLog, run_id: str, system: RatingSystem, scopes: Scopes = _ALL, out: LabelledSet | None = None
) -> Rerated:
    """Rate a run's games on a log anew; ``run_id`` is the full id."""
    rater = Rater(run_id, system, scopes, out)
    seen: dict[str, IndexSet] = {}
    outcomes: list[GameOutcome] = []
    async for _, event in run_events(log, (GameOutcome.TOPIC,), run_id):
        # Do the same as the rating processor: a game counts once, one without seats or from a position not.
        if not isinstance(event, GameOutcome) or not event.seats or event.position is not None:
            continue
        if seen.setdefault(event.split, IndexSet()).add(event.game_index):
            outcomes.append(event)
        if len(outcomes) >= _CHUNK_GAMES:
            _rate(rater, outcomes)
            outcomes = []
    _rate(rater, outcomes)
    used: dict[tuple[str, str], tuple[float, float, int]] = {}
    async for _, event in run_events(log, (Rating.TOPIC,), run_id):
        if isinstance(event, Rating):
            key = (event.env_id, event.model_uid)
            if key not in used or used[key][2] < event.games:
                used[key] = (event.mu, event.sigma, event.games)
    return rater.finish(used, "log")


def _rate(rater: Rater, outcomes: Sequence[GameOutcome]) -> None:
    names, seats = rater.names, [seat for outcome in outcomes for seat in outcome.seats]
    teams = [-1 if seat.team is None else seat.team for seat in seats]
    games = GameColumns(
        envs=[names.env(outcome.env_id) for outcome in outcomes],
        starts=[0, *accumulate(len(outcome.seats) for outcome in outcomes)],
        models=[names.model(seat.model_uid, seat.policy_version, seat.parent_uid) for seat in seats],
        ranks=[seat.rank for seat in seats],
        teams=teams if max(teams, default=-1) >= 0 else None,
    )
    rater.rate(games, [outcome.game_id for outcome in outcomes])


def archived_config(path: ArchiveAddress, run: str) -> tuple[str, RunConfig]:
    """Return a run's full id and configuration; see :func:`find_archived_run`.

    Raises:
        ArchiveError: there is no archive.
        RunError: no such run, or several; lists what is there.
    """
    with open_archive(path) as connection:
        run_id = find_archived_run(connection, run)
        ((config,),) = connection.execute("SELECT config FROM runs WHERE run_id = ?", [run_id]).fetchall()
    return run_id, parse_config(as_recorded(msgspec.json.decode(config)), origin=f"run {run_id}")
