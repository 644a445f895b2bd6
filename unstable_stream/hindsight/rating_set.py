"""New ratings of a run beside the used ones: the fold, the labelled set, and the comparison."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from unstable_stream.archive.game_columns import Coded
from unstable_stream.archive.what_if import LabelledSet
from unstable_stream.events import OVERALL
from unstable_stream.model_pool.rating_columns import GameColumns, Names, RatingHistory
from unstable_stream.model_pool.ratings import Ratings
from unstable_stream.model_pool.systems import RatingSystem
from unstable_stream.version import __version__

__all__ = ["Compared", "Rater", "Rerated", "Scopes", "UsedRating"]

_RATINGS: Final = {
    "run_id": "VARCHAR",
    "env_id": "VARCHAR",
    "model_uid": "VARCHAR",
    "mu": "DOUBLE",
    "sigma": "DOUBLE",
    "games": "INTEGER",
    "game_id": "VARCHAR",
}
_LADDER: Final = {
    "run_id": "VARCHAR",
    "env_id": "VARCHAR",
    "rank": "INTEGER",
    "model_uid": "VARCHAR",
    "mu": "DOUBLE",
    "sigma": "DOUBLE",
    "games": "INTEGER",
    "rank_used": "INTEGER",
    "mu_used": "DOUBLE",
    "sigma_used": "DOUBLE",
    "games_used": "INTEGER",
}


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
        self._out.write(
            "ratings",
            _RATINGS,
            {
                "run_id": Coded(np.zeros(len(history.mu), dtype=np.int32), [self._run_id]),
                "env_id": Coded(history.scope + 1, [OVERALL, *self.names.envs]),
                "model_uid": Coded(history.model, self.names.models),
                "mu": history.mu,
                "sigma": history.sigma if self._system.uncertain else [None] * len(history.mu),
                "games": history.games,
                "game_id": Coded(history.game, game_ids),
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
