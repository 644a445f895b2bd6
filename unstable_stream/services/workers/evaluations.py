"""The evaluation games of a run: which checkpoints get some, and which of these were started.

Each scheduled checkpoint plays every fixed opponent on the same odd seeds, in each of its seats in turn. So
checkpoints are compared on the same games. In a round robin the fixed opponents play each other instead, each
pair every seed twice: one has a seat (or team) and the other all others, then they change places. In
seats that are given, the named players play game after game.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import TypeAlias

import msgspec

from unstable_stream.events import Checkpoint, GameStarted, checkpoint_uid
from unstable_stream.events.seeds import eval_game_seed
from unstable_stream.games.disguises.naming import plain_id
from unstable_stream.games.seating import Seating, seat_players
from unstable_stream.model_pool import ModelPool
from unstable_stream.runs.config import EnvConfig, RunConfig

_Key: TypeAlias = tuple[str, int, tuple[str, ...]]
"""Environment, seed, and the players by seat."""


def seating_of(config: RunConfig, env: EnvConfig, seed: int) -> Seating:
    """Return how the players of a game are seated."""
    with_roles = config.deals_roles(env.env_id)
    return seat_players(env.env_id, env.num_players, env.teams, seed, with_roles=with_roles)


def model_in(config: RunConfig, env: EnvConfig, seat: int, seating: Seating) -> str | None:
    """Return the trained model whose seat this is."""
    return config.model_of(env.env_id, seat, seating.roles.get(seat))


class CheckpointChoice:
    """Takes the first checkpoint, the last one, and each that reaches another multiple of ``every``.

    Not every update has a checkpoint, so a multiple may be passed over: the next checkpoint stands for it.
    """

    def __init__(self, every: int, last: int) -> None:
        """``last``: the iteration from which on a checkpoint is the last."""
        self._every = every
        self._last = last
        self.taken: int | None = None
        """The iteration of the last checkpoint that was chosen."""

    def takes(self, iteration: int) -> bool:
        """Return whether this checkpoint is chosen; call it once for each, in order."""
        before = self.taken
        chosen = before is None or iteration >= self._last or iteration // self._every > before // self._every
        if chosen:
            self.taken = iteration
        return chosen


class EvaluationsState(msgspec.Struct, frozen=True, kw_only=True):
    """The result of :meth:`Evaluations.state`."""

    taken: tuple[int | None, ...]
    """By trained model, the iteration of its last checkpoint that was chosen."""
    open: tuple[str, ...]
    started: dict[str, list[_Key]]


class Evaluations:
    """A fold over checkpoints and games. It grows with evaluations under way."""

    def __init__(
        self, config: RunConfig, first_update: int, pool: ModelPool, checkpoints: Mapping[str, Checkpoint]
    ) -> None:
        """Take what is known of the run: ``pool`` and ``checkpoints`` are those of the schedule.

        ``first_update``: checkpoints before it were evaluated by the parent of a fork.
        """
        self._config = config
        self._first_update = first_update
        self._pool = pool
        self._checkpoints = checkpoints
        self._chosen = {
            model: CheckpointChoice(config.evaluation.every, config.learner.iterations)
            for model in config.model_names
        }
        self.open: list[Checkpoint] = []
        """Checkpoints with games that are not started yet."""
        self._matches_of: dict[str, int] = {}
        """By checkpoint, the number of its evaluation games: fewer where it is dealt no role of its own."""
        self._started: dict[str, set[_Key]] = {}
        """Started evaluation games by checkpoint, until all are started. Those of a round robin are the
        initial policy's, which plays none of them."""

    # -- fold ---------------------------------------------------------------------------------

    def add(self, checkpoint: Checkpoint) -> None:
        """Take in a checkpoint, once, that the pool knows already."""
        if checkpoint.iteration < self._first_update:
            return  # the parent has evaluated it
        chosen = self._chosen.get(checkpoint.model)
        if chosen is not None and chosen.takes(checkpoint.iteration):
            self.open.append(checkpoint)
            self._close_full()
        else:
            self._started.pop(checkpoint.model_uid, None)

    def begin(self, game: GameStarted) -> None:
        """Take in a game, once."""
        uid = game.evaluated_uid
        if self._config.evaluation.round_robin and game.split == "eval":
            uid = checkpoint_uid(0)
        if uid is not None and (uid not in self._checkpoints or self._is_open(uid)):
            key = (game.env_id, game.seed, tuple(seat.model_uid for seat in game.seats))
            self._started.setdefault(uid, set()).add(key)
            self._close_full()

    def state(self) -> EvaluationsState:
        """Return the state of the fold."""
        return EvaluationsState(
            taken=tuple(choice.taken for choice in self._chosen.values()),
            open=tuple(checkpoint.model_uid for checkpoint in self.open),
            started={uid: sorted(keys) for uid, keys in sorted(self._started.items())},
        )

    def load_state(self, state: EvaluationsState) -> None:
        """Go on from a state of this fold; the schedule's checkpoints are there already."""
        for choice, taken in zip(self._chosen.values(), state.taken, strict=True):
            choice.taken = taken
        self.open = [self._checkpoints[uid] for uid in state.open]
        self._started = {uid: set(keys) for uid, keys in state.started.items()}

    def _is_open(self, uid: str) -> bool:
        return any(checkpoint.model_uid == uid for checkpoint in self.open)

    def _close_full(self) -> None:
        for checkpoint in tuple(self.open):
            started = self._started.get(checkpoint.model_uid, ())
            if len(started) >= self._number_of_matches(checkpoint):
                self.open.remove(checkpoint)
                self._started.pop(checkpoint.model_uid, None)
                self._matches_of.pop(checkpoint.model_uid, None)

    # -- games --------------------------------------------------------------------------------

    def wanted(self) -> Iterator[tuple[EnvConfig, int, tuple[str, ...], str | None]]:
        """Yield the games to start: environment, seed, the players by seat, and who is evaluated."""
        for checkpoint in self.open:
            started = self._started.get(checkpoint.model_uid, ())
            evaluated = None if self._config.evaluation.round_robin else checkpoint.model_uid
            for env, seed, players in self._matches(checkpoint):
                if all(players) and (env.env_id, seed, players) not in started:
                    # Otherwise a partner's checkpoint is still to come, or the game was started.
                    yield env, seed, players, evaluated

    def _matches(self, checkpoint: Checkpoint) -> Iterator[tuple[EnvConfig, int, tuple[str, ...]]]:
        """Yield a checkpoint's evaluation games: environment, seed, and the players by seat."""
        settings, uid = self._config.evaluation, checkpoint.model_uid
        run_seed = self._config.seed if settings.seed is None else settings.seed
        names = [opponent.name for opponent in settings.opponents]
        for number, env in product(
            range(self._games_per_checkpoint(checkpoint)), self._config.evaluated_envs
        ):
            if settings.seatings:
                round_, place = divmod(number, len(settings.seatings))
                yield env, eval_game_seed(run_seed, plain_id(env.env_id), round_), settings.seatings[place]
                continue
            if settings.round_robin:
                seed = eval_game_seed(run_seed, plain_id(env.env_id), number // 2)
                seating = seating_of(self._config, env, seed)
                of_seats = [seating.side(seat) for seat in range(env.num_players)]
                sides = list(dict.fromkeys(of_seats))
                alone = sides[number // 2 % len(sides)]
                for pair in combinations(names, 2):
                    one, others = reversed(pair) if number % 2 else pair
                    yield env, seed, tuple(one if side == alone else others for side in of_seats)
                continue
            seed = eval_game_seed(run_seed, plain_id(env.env_id), number)
            seating = seating_of(self._config, env, seed)
            own = [
                seating.side(seat)
                for seat in range(env.num_players)
                if model_in(self._config, env, seat, seating) == checkpoint.model
            ]
            if not own:
                continue
            sides = list(dict.fromkeys(own))
            mine = sides[number % len(sides)]
            partners = {
                seat: self._partner(checkpoint, model_in(self._config, env, seat, seating))
                for seat in range(env.num_players)
                if seating.side(seat) == mine
            }
            for opponent in names if len(partners) < env.num_players else [uid]:
                yield env, seed, tuple(partners.get(seat, opponent) for seat in range(env.num_players))

    def _partner(self, checkpoint: Checkpoint, model: str | None) -> str:
        """Return who plays beside a checkpoint under evaluation: that of the same update of another model.

        A run that was stopped has its last updates saved, each model's own, and makes those that others lack
        no more. So once a later one is there, it is the newest before. Empty: none is known yet. Where no
        other model has any, as in an evaluation of one checkpoint alone, the checkpoint plays for its whole
        team.
        """
        newest = self._pool.current_uid(model)
        if model == checkpoint.model or newest is None:
            return checkpoint.model_uid
        last = min(checkpoint.iteration, self._config.learner.iterations)
        if self._checkpoints[newest].iteration < last:
            return ""
        return self._pool.partner_of(checkpoint.model_uid, model)

    def _number_of_matches(self, checkpoint: Checkpoint) -> int:
        settings = self._config.evaluation
        if settings.round_robin:
            return self._config.round_robin_games
        known = self._matches_of.get(checkpoint.model_uid)
        if known is None:
            known = self._matches_of[checkpoint.model_uid] = sum(1 for _ in self._matches(checkpoint))
        return known

    def _games_per_checkpoint(self, checkpoint: Checkpoint) -> int:
        evaluation = self._config.evaluation
        ends = (self._first_update, self._config.learner.iterations)
        if evaluation.first_last_games and checkpoint.iteration in ends:
            return evaluation.first_last_games
        return evaluation.max_eval_games_per_ckpt
