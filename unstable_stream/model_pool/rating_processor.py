"""Turn game outcomes into rating events: the rating processor, around the fold :class:`Ratings`."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from unstable_stream.errors import EventError
from unstable_stream.events import OVERALL, Event, GameOutcome, Rating, event_id
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.model_pool.rating_columns import GameColumns, Names, RatingHistory
from unstable_stream.model_pool.ratings import Ratings
from unstable_stream.model_pool.skill import Skill
from unstable_stream.model_pool.systems import RatingSystem, TrueSkill


class RatingProcessor:
    """Rates the models of each finished game, of the train and the eval split, against one another.

    Who is rated, and from where, is in :mod:`unstable_stream.model_pool.ratings`. A game seen before changes
    nothing. All it needs to know about a checkpoint is in the outcome, so its only input is one topic in one
    order.
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
        if not isinstance(event, GameOutcome) or event.run_id != self.run_id:
            return ()
        if not event.seats:
            raise EventError(f"outcome of game {event.game_id} has no seats; expected one per player")
        seen = self._seen.get(event.split)
        if seen is None:
            seen = self._seen[event.split] = IndexSet()
        if not seen.add(event.game_index):
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
        run_id, occurred_at_ms, game_id = event.run_id, event.occurred_at_ms, event.game_id
        uids = names.models
        ratings: list[Rating] = []
        # Those of the environment come first, each scope by model.
        for overall, uid, mu, sigma, games in sorted(
            [
                (scope < 0, uids[int(model)], mu, sigma, int(games))
                for _, scope, model, mu, sigma, games in history.rows()
            ]
        ):
            env_id = OVERALL if overall else event.env_id
            ratings.append(
                Rating(
                    event_id=event_id(run_id, "rating", game_id, env_id, uid),
                    run_id=run_id,
                    occurred_at_ms=occurred_at_ms,
                    env_id=env_id,
                    model_uid=uid,
                    mu=mu,
                    sigma=sigma,
                    games=games,
                    game_id=game_id,
                )
            )
        return ratings

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
