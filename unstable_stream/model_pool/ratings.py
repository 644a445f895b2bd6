"""Fold game outcomes into TrueSkill ratings, per environment and overall."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from unstable_stream.errors import EventError
from unstable_stream.events import OVERALL, Event, GameOutcome, Rating, event_id
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.model_pool.skill import Skill, TrueSkillSettings, rate_game

__all__ = ["RatingProcessor", "ranks_by_model"]


class RatingProcessor:
    """Rates the models of each finished game, of the train and the eval split, against one another.

    - Every model takes part once, as a team of its own. One that played several seats takes part with the
      mean of its seats' ranks; in mirror self-play it is alone and nothing is rated: a model is never rated
      against itself.
    - Equal ranks are a draw. A truncated game is rated by its ranks like any other.
    - A checkpoint's first rated game (in an environment, and overall) starts from its parent's rating at
      that moment, its uncertainty widened by ``inherited_sigma``. A parent never rated there passes the
      question to its own parent, and, where that is unknown, to the newest rated checkpoint before it.
      With none of these, and for fixed opponents, the start is the default.
    - A game seen before changes nothing.

    All it needs to know about a checkpoint is in the outcome, so its only input is one topic in one order.
    """

    name: ClassVar[str] = "rating-processor"
    inputs: ClassVar[tuple[str, ...]] = (GameOutcome.TOPIC,)

    def __init__(self, run_id: str, settings: TrueSkillSettings | None = None) -> None:
        """Start with nobody rated."""
        self.run_id = run_id
        self.settings = settings if settings is not None else TrueSkillSettings()
        self._seen: dict[str, IndexSet] = {}
        self._skills: dict[str, dict[str, Skill]] = {}
        self._games: dict[str, dict[str, int]] = {}
        self._parents: dict[str, str | None] = {}
        self._versions: dict[str, int] = {}

    def handle(self, event: Event) -> Sequence[Event]:
        """Fold one event.

        Raises:
            EventError: an outcome without seats; nothing has changed.
        """
        if not isinstance(event, GameOutcome) or event.run_id != self.run_id:
            return ()
        if not event.seats:
            raise EventError(f"outcome of game {event.game_id} has no seats; expected one per player")
        if not self._seen.setdefault(event.split, IndexSet()).add(event.game_index):
            return ()
        for seat in event.seats:
            if seat.policy_version is not None:
                self._parents.setdefault(seat.model_uid, seat.parent_uid)
                self._versions.setdefault(seat.model_uid, seat.policy_version)
        ranks = ranks_by_model(event)
        if len(ranks) < 2:
            return ()
        return [rating for scope in (event.env_id, OVERALL) for rating in self._rate(event, scope, ranks)]

    def skill(self, model_uid: str, env_id: str = OVERALL) -> Skill:
        """Return what a model would start its next game at."""
        known = self._skills.get(env_id, {})
        return known.get(model_uid) or self._first_skill(model_uid, known)

    def _rate(self, event: GameOutcome, scope: str, ranks: Mapping[str, float]) -> list[Rating]:
        skills = self._skills.setdefault(scope, {})
        games = self._games.setdefault(scope, {})
        # All starting points are read before any is written: a model may play its own parent.
        before = {uid: skills.get(uid) or self._first_skill(uid, skills) for uid in ranks}
        after = rate_game(self.settings, event.env_id, before, ranks)
        skills.update(after)
        ratings = []
        for uid in sorted(after):
            games[uid] = games.get(uid, 0) + 1
            ratings.append(
                Rating(
                    event_id=event_id(self.run_id, "rating", event.game_id, scope, uid),
                    run_id=self.run_id,
                    occurred_at_ms=event.occurred_at_ms,
                    env_id=scope,
                    model_uid=uid,
                    mu=after[uid].mu,
                    sigma=after[uid].sigma,
                    games=games[uid],
                    game_id=event.game_id,
                )
            )
        return ratings

    def _first_skill(self, uid: str, skills: Mapping[str, Skill]) -> Skill:
        visited = {uid}
        parent = self._parents.get(uid)
        while parent is not None and parent not in visited:
            if parent in skills:
                return self.settings.inherited(skills[parent])
            visited.add(parent)
            parent = self._parents.get(parent)
        version = self._versions.get(uid)
        if version is None:
            return self.settings.default
        earlier = [(v, u) for u, v in self._versions.items() if v < version and u in skills]
        return self.settings.inherited(skills[max(earlier)[1]]) if earlier else self.settings.default

    def state(self) -> dict[str, Any]:
        """Return everything the fold depends on, as JSON values."""
        return {
            "seen": {split: [list(r) for r in seen.ranges()] for split, seen in sorted(self._seen.items())},
            "ratings": {
                scope: {
                    uid: [skill.mu, skill.sigma, self._games[scope][uid]]
                    for uid, skill in sorted(skills.items())
                }
                for scope, skills in sorted(self._skills.items())
            },
            "checkpoints": {
                uid: [version, self._parents[uid]] for uid, version in sorted(self._versions.items())
            },
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned, also after a trip through JSON."""
        self._seen = {s: IndexSet((start, stop) for start, stop in r) for s, r in state["seen"].items()}
        self._skills = {
            scope: {uid: Skill(mu, sigma) for uid, (mu, sigma, _) in rated.items()}
            for scope, rated in state["ratings"].items()
        }
        self._games = {
            scope: {uid: games for uid, (_, _, games) in rated.items()}
            for scope, rated in state["ratings"].items()
        }
        self._versions = {uid: version for uid, (version, _) in state["checkpoints"].items()}
        self._parents = {uid: parent for uid, (_, parent) in state["checkpoints"].items()}


def ranks_by_model(outcome: GameOutcome) -> dict[str, float]:
    """Return each model's rank, lower is better; of a model in several seats, their mean."""
    seats: dict[str, list[int]] = {}
    for result in outcome.seats:
        seats.setdefault(result.model_uid, []).append(result.rank)
    return {uid: sum(ranks) / len(ranks) for uid, ranks in seats.items()}
