"""Fold games into ratings, per environment and overall, by any rating system: the one fold there is.

Live rating and ``verify`` hand it one game at a time (:class:`RatingProcessor`), ``rerate`` a million in
columns. The fold knows who is rated against whom and where a model starts. A rating system
(:class:`~unstable_stream.model_pool.systems.RatingSystem`) knows how beliefs change by a game.

- Every model takes part once, as a team of its own. One that played several seats takes part with the mean
  of its seats' ranks. In mirror self-play it is alone and nothing is rated: a model is never rated against
  itself.
- Seats that win and lose together are a team, and teams are rated against each other
  (:func:`~unstable_stream.model_pool.teams.rate_sides`). A team's rank is the best of its seats.
- Equal ranks are a draw. A truncated game is rated by its ranks like any other.
- A checkpoint's first rated game (in an environment, and overall) starts from what it inherits of its
  parent's rating at that moment. A parent never rated there passes the question to its own parent, and, where
  that is unknown, to the newest rated checkpoint of its model before it. With none of these, and for fixed
  opponents, the start is the system's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

from unstable_stream.errors import EventError
from unstable_stream.events import OVERALL, Event, GameOutcome, Rating, event_id, trained_model
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.model_pool.rating_columns import GameColumns, Names, RatingHistory
from unstable_stream.model_pool.skill import Belief, PairUpdate, Skill, TrueSkill
from unstable_stream.model_pool.systems import RatingSystem
from unstable_stream.model_pool.teams import rate_sides, shares_of, sides_of


@dataclass(frozen=True, slots=True)
class RatedModel:
    """The final rating of a model."""

    env_id: str
    model_uid: str
    mu: float
    sigma: float
    games: int
    rank: int
    """1 is best; by the system's score, then by name."""


class _Scope:
    """Ratings of all models in one environment, or overall."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.mu: list[float | None] = []
        """By model; ``None``: not rated yet."""
        self.sigma: list[float] = []
        self.games: list[int] = []

    def grow(self, models: int) -> None:
        missing = models - len(self.mu)
        self.mu += [None] * missing
        self.sigma += [0.0] * missing
        self.games += [0] * missing


class Ratings:
    """The fold. Its memory grows with models and environments, not with games."""

    def __init__(
        self, names: Names, system: RatingSystem, *, per_env: bool = True, overall: bool = True
    ) -> None:
        """``per_env`` and ``overall`` say what is rated; ``names`` may still grow."""
        self._names = names
        self._system = system
        self._per_env = per_env
        self._overall = _Scope(-1) if overall else None
        self._by_env: list[tuple[_Scope, ...]] = []
        self._scopes = [self._overall] if self._overall is not None else []
        self._pairs: list[PairUpdate] = []
        self._room = (0, 0)
        """Environments and models there is room for."""
        self._known = -1
        """Models up to this number have appeared in a game."""
        self.games = 0
        """Games so far."""
        self.rated = 0
        """Those among different models."""

    def apply(self, games: GameColumns, history: RatingHistory | None = None) -> None:
        """Rate the next games; every new rating is added to ``history``."""
        self._make_room()
        names, pairs, by_env, known = self._names.models, self._pairs, self._by_env, self._known
        models, ranks = games.models, games.ranks
        extend = None if history is None else history.numbers.extend
        for place, env in enumerate(games.envs):
            first, stop = games.starts[place], games.starts[place + 1]
            teams = None if games.teams is None else games.teams[first:stop]
            if stop - first != 2 or (teams is not None and max(teams) >= 0):
                self._known = known = max(known, *models[first:stop])
                self._rate_seats(place, env, models[first:stop], ranks[first:stop], teams, history)
                continue
            a, b = models[first], models[first + 1]
            if a > known or b > known:
                self._known = known = max(a, b)
            if a == b:
                continue
            self.rated += 1
            rank_a, rank_b = ranks[first], ranks[first + 1]
            drawn = rank_a == rank_b
            if rank_b < rank_a or (drawn and names[b] < names[a]):
                a, b = b, a
            update = pairs[env]
            before = after = None
            for scope in by_env[env]:
                mu, sigma = scope.mu, scope.sigma
                mu_a, mu_b = mu[a], mu[b]
                sigma_a, sigma_b = sigma[a], sigma[b]
                # All starting points are read before any is written: a model may play its own parent.
                if mu_a is None:
                    mu_a, sigma_a = self._first(scope, a)
                if mu_b is None:
                    mu_b, sigma_b = self._first(scope, b)
                # With one environment the overall beliefs are the environment's: one update does for both.
                beliefs = (mu_a, sigma_a, mu_b, sigma_b)
                if after is None or beliefs != before:
                    before, after = beliefs, update(mu_a, sigma_a, mu_b, sigma_b, drawn)
                mu_a, sigma_a, mu_b, sigma_b = after
                mu[a], sigma[a], mu[b], sigma[b] = mu_a, sigma_a, mu_b, sigma_b
                counts = scope.games
                counts[a] += 1
                counts[b] += 1
                if extend is not None:
                    row = (place, scope.number)
                    extend((*row, a, mu_a, sigma_a, counts[a], *row, b, mu_b, sigma_b, counts[b]))
        self.games += len(games.envs)

    def _make_room(self) -> None:
        names = (len(self._names.envs), len(self._names.models))
        if names == self._room:
            return
        self._room = names
        for number in range(len(self._by_env), len(self._names.envs)):
            own = [_Scope(number)] if self._per_env else []
            self._scopes += own
            self._by_env.append((*own, *([self._overall] if self._overall is not None else [])))
            self._pairs.append(self._system.pair(self._names.envs[number]))
        for scope in self._scopes:
            scope.grow(len(self._names.models))

    def _rate_seats(
        self,
        place: int,
        env: int,
        models: Sequence[int],
        ranks: Sequence[int],
        teams: Sequence[int] | None,
        history: RatingHistory | None,
    ) -> None:
        """Rate a game that is not between two models for themselves."""
        if teams is not None and max(teams) >= 0:
            sides, name = sides_of(models, ranks, teams), self._names.envs[env]
            if any(shares_of(one, other) for one, other in combinations(sides, 2)):  # else all played alike
                members = sorted({model for side in sides for model in side.seats})
                self._rate(
                    place, env, members, lambda now: rate_sides(self._system, name, now, sides), history
                )
            return
        seats: dict[int, list[int]] = {}
        for model, rank in zip(models, ranks, strict=True):
            seats.setdefault(model, []).append(rank)
        mean_ranks = {model: sum(each) / len(each) for model, each in seats.items()}
        if len(mean_ranks) > 1:
            self._rate(place, env, seats, lambda now: self._after(env, mean_ranks, now), history)

    def _rate(
        self,
        place: int,
        env: int,
        models: Iterable[int],
        after: Callable[[dict[int, Belief]], dict[int, Belief]],
        history: RatingHistory | None,
    ) -> None:
        self.rated += 1
        before: dict[int, Belief] = {}
        rated: dict[int, Belief] = {}
        for scope in self._by_env[env]:
            beliefs = {model: self._belief(scope, model) for model in models}
            if beliefs != before:
                before, rated = beliefs, after(beliefs)
            for model, (mu, sigma) in rated.items():
                scope.mu[model], scope.sigma[model] = mu, sigma
                scope.games[model] += 1
                if history is not None:
                    history.numbers.extend((place, scope.number, model, mu, sigma, scope.games[model]))

    def _after(
        self, env: int, ranks: Mapping[int, float], beliefs: Mapping[int, Belief]
    ) -> dict[int, Belief]:
        names = self._names.models
        if len(beliefs) == 2:
            winner, loser = sorted(beliefs, key=lambda model: (ranks[model], names[model]))
            numbers = self._pairs[env](*beliefs[winner], *beliefs[loser], ranks[winner] == ranks[loser])
            return {winner: numbers[:2], loser: numbers[2:]}
        players = {names[model]: belief for model, belief in beliefs.items()}
        rank_of = {names[model]: rank for model, rank in ranks.items()}
        rated = self._system.many(self._names.envs[env], players, rank_of)
        return {model: (rated[names[model]][0], rated[names[model]][1]) for model in beliefs}

    def _belief(self, scope: _Scope, model: int) -> Belief:
        mu = scope.mu[model]
        return self._first(scope, model) if mu is None else (mu, scope.sigma[model])

    def _first(self, scope: _Scope, model: int) -> Belief:
        """Return the first belief about a model."""
        names = self._names
        visited = {names.models[model]}
        parent = self._parent(model)
        while parent is not None and parent not in visited:
            number = names.model_of.get(parent)
            if number is None or number > self._known:
                break
            mu = scope.mu[number]
            if mu is not None:
                return self._system.inherited(mu, scope.sigma[number])
            visited.add(parent)
            parent = self._parent(number)
        version = names.versions[model]
        if version is None:
            return self._system.start
        of = trained_model(names.models[model])
        earlier = [
            (other, names.models[number])
            for number, other in enumerate(names.versions[: self._known + 1])
            if other is not None and other < version and scope.mu[number] is not None
            if trained_model(names.models[number]) == of
        ]
        if not earlier:
            return self._system.start
        return self._system.inherited(*self._belief(scope, names.model_of[max(earlier)[1]]))

    def _parent(self, model: int) -> str | None:
        # Only of a checkpoint is the parent known.
        return self._names.parents[model] if self._names.versions[model] is not None else None

    def belief(self, env_id: str, model_uid: str) -> Belief:
        """Return what a model would start its next game at, in an environment or :data:`OVERALL`."""
        self._make_room()
        model = self._names.model_of.get(model_uid)
        scope = next((scope for scope in self._scopes if self._env_of(scope) == env_id), None)
        return self._system.start if model is None or scope is None else self._belief(scope, model)

    def _env_of(self, scope: _Scope) -> str:
        return OVERALL if scope.number < 0 else self._names.envs[scope.number]

    def state(self) -> dict[str, Any]:
        """Return every rating, and what is known of checkpoints, as JSON values."""
        names = self._names
        rated = {
            self._env_of(scope): {
                uid: [scope.mu[model], scope.sigma[model], scope.games[model]]
                for uid, model in sorted(names.model_of.items())
                if model < len(scope.mu) and scope.mu[model] is not None
            }
            for scope in self._scopes
        }
        return {
            "ratings": {env_id: models for env_id, models in sorted(rated.items()) if models},
            "checkpoints": {
                uid: [names.versions[model], names.parents[model]]
                for uid, model in sorted(names.model_of.items())
                if names.versions[model] is not None
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned, also through JSON; nothing may be rated yet."""
        names = self._names
        for uid, (version, parent) in state["checkpoints"].items():
            names.model(uid, version, parent)
        for env_id, rated in state["ratings"].items():
            if env_id != OVERALL:
                names.env(env_id)
            for uid in rated:
                names.model(uid, None, None)
        self._make_room()
        for scope in self._scopes:
            for uid, (mu, sigma, games) in state["ratings"].get(self._env_of(scope), {}).items():
                model = names.model_of[uid]
                scope.mu[model], scope.sigma[model], scope.games[model] = mu, sigma, games
        self._known = len(names.models) - 1

    def ladder(self) -> list[RatedModel]:
        """Return everybody rated, by environment (overall first) and rank."""
        rows: list[RatedModel] = []
        for scope in sorted(self._scopes, key=lambda scope: scope.number):
            env_id = self._env_of(scope)
            standing = [
                (self._system.score(mu, scope.sigma[model]), self._names.models[model], model, mu)
                for model, mu in enumerate(scope.mu)
                if mu is not None
            ]
            standing.sort(key=lambda entry: (-entry[0], entry[1]))
            rows += [
                RatedModel(env_id, uid, mu, scope.sigma[model], scope.games[model], rank)
                for rank, (_, uid, model, mu) in enumerate(standing, 1)
            ]
        return rows


class RatingProcessor:
    """Rates the models of each finished game, of the train and the eval split, against one another.

    A game seen before changes nothing. All it needs to know about a checkpoint is in the outcome, so its only
    input is one topic in one order.
    """

    name: ClassVar[str] = "rating-processor"
    inputs: ClassVar[tuple[str, ...]] = (GameOutcome.TOPIC,)

    def __init__(self, run_id: str, system: RatingSystem | None = None) -> None:
        """Start with nobody rated; ``system``: by default TrueSkill."""
        self.run_id = run_id
        self._system = system if system is not None else TrueSkill()
        self._seen: dict[str, IndexSet] = {}
        self._start()

    def _start(self) -> None:
        self._names = Names()
        self._ratings = Ratings(self._names, self._system)

    def handle(self, event: Event) -> Sequence[Event]:
        """Fold one event.

        Raises:
            EventError: an outcome without seats; nothing has changed.
        """
        if not isinstance(event, GameOutcome) or event.run_id != self.run_id or event.position is not None:
            return ()  # a game from a position says more of the position than of its players
        if not event.seats:
            raise EventError(f"outcome of game {event.game_id} has no seats; expected one per player")
        if not self._seen.setdefault(event.split, IndexSet()).add(event.game_index):
            return ()
        names = self._names
        game = GameColumns(
            envs=[names.env(event.env_id)],
            starts=[0, len(event.seats)],
            models=[
                names.model(seat.model_uid, seat.policy_version, seat.parent_uid) for seat in event.seats
            ],
            ranks=[seat.rank for seat in event.seats],
            teams=_teams(event),
        )
        history = RatingHistory()
        self._ratings.apply(game, history)
        # Those of the environment come first, each scope by model.
        rows = sorted(
            (scope < 0, names.models[int(model)], mu, sigma, int(games))
            for _, scope, model, mu, sigma, games in history.rows()
        )
        return [self._rating(event, *row) for row in rows]

    def _rating(
        self, event: GameOutcome, overall: bool, uid: str, mu: float, sigma: float, games: int
    ) -> Rating:
        env_id = OVERALL if overall else event.env_id
        return Rating(
            event_id=event_id(self.run_id, "rating", event.game_id, env_id, uid),
            run_id=self.run_id,
            occurred_at_ms=event.occurred_at_ms,
            env_id=env_id,
            model_uid=uid,
            mu=mu,
            sigma=sigma,
            games=games,
            game_id=event.game_id,
        )

    def skill(self, model_uid: str, env_id: str = OVERALL) -> Skill:
        """Return what a model would start its next game at."""
        return Skill(*self._ratings.belief(env_id, model_uid))

    def state(self) -> dict[str, Any]:
        """Return everything the fold depends on, as JSON values."""
        return {
            "seen": {split: [list(r) for r in seen.ranges()] for split, seen in sorted(self._seen.items())},
            **self._ratings.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned, also after a trip through JSON."""
        self._seen = {s: IndexSet((start, stop) for start, stop in r) for s, r in state["seen"].items()}
        self._start()
        self._ratings.load_state(state)


def _teams(event: GameOutcome) -> list[int] | None:
    if all(seat.team is None for seat in event.seats):
        return None
    return [-1 if seat.team is None else seat.team for seat in event.seats]
