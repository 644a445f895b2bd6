"""Decide on the next games: a fold over the events so far, and decisions that are then recorded.

In training games the newest checkpoint plays seat ``index mod players`` against an opponent from the model
pool. If ``collector.branches`` asks for it, positions of games that ended are played on from. Where several
models are trained, each seat is played by checkpoints of the model whose seat it is, or by fixed opponents.
Seats that win together are played together: one draw gives a team its opponent.
Evaluation games: :mod:`unstable_stream.services.workers.evaluations`.
"""

import copy
import random
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from unstable_stream.events import (
    UNREADABLE,
    Action,
    Checkpoint,
    Event,
    GameAbandoned,
    GameOutcome,
    GamePosition,
    GameStarted,
    LearnerUpdate,
    RecordRejected,
    RunStarted,
    Seat,
    StepsDropped,
    Trajectory,
    event_id,
    game_id,
    trained_model,
)
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.events.seeds import derive_seed, train_game_seed
from unstable_stream.games.seating import Seating
from unstable_stream.log.records import rejected_event
from unstable_stream.model_pool import ModelPool, PoolState
from unstable_stream.model_pool.results import environment_shares
from unstable_stream.model_pool.systems import live_rating_system
from unstable_stream.reward_transformations import RewardProcessor, expected_steps_of
from unstable_stream.runs.config import EnvConfig, OpponentConfig, RunConfig
from unstable_stream.services.streams.processor import group_of
from unstable_stream.services.workers.branches import Branched, Branches, BranchesState
from unstable_stream.services.workers.evaluations import Evaluations, EvaluationsState, model_in, seating_of

_MOST_ABANDONED = 1_000
# Of so many abandoned games it is remembered that another worker may still finish them. An outcome that comes
# later than that is not counted: a few steps of back-pressure.
_GUESSED_PER_GAME = 5
"""The assumed number of steps of a game before any has finished; the measured mean soon replaces it."""


def build_pool(config: RunConfig) -> ModelPool:
    """Return an empty model pool; raises :class:`ConfigError` if the settings leave no opponent to draw."""
    settings = config.model_pool
    return ModelPool(
        sample_mode=settings.sample_mode,
        max_active_lora=settings.max_active_lora,
        lag_range=settings.lag_range,
        temperature=settings.temperature,
        fixed={opponent.name: opponent.weight for opponent in settings.fixed},
        system=live_rating_system(settings.rating_system, settings.draw_probability),
    )


class PendingSteps(msgspec.Struct, kw_only=True):
    """Steps that games have produced and no update has used yet: the back-pressure on starting games.

    An outcome says how many steps follow from its game. They are consumed when an update trains on them or
    drops them; when a drop is recorded between updates; and when their trajectory was quarantined, so that
    no step will come of it. By trained model, ``""`` is the only one of a run.
    """

    train_games: int = 0
    produced: dict[str, int] = {}
    consumed: dict[str, int] = {}
    drops: set[str] = set()
    """Events of drops between updates: few, each of all that was pending or of a restart."""
    quarantined: set[str] = msgspec.field(name="set_aside", default_factory=set)
    """Trajectories on ``dead-letters``."""
    steps_quarantined: int = msgspec.field(name="steps_set_aside", default=0)
    """The number of steps that would have come of them, and of such as cannot be decoded."""

    def total(self) -> int:
        """Return the number of pending steps of all models."""
        return sum(self.produced.values()) - sum(self.consumed.values())

    def of(self, model: str | None) -> int:
        """Return the number of pending steps of a model."""
        return self.produced.get(model or "", 0) - self.consumed.get(model or "", 0)

    def per_game(self, model: str | None) -> float:
        """Return how many steps a game gives a model, on average so far."""
        return (self.produced.get(model or "", 0) + _GUESSED_PER_GAME) / (self.train_games + 1)

    def produce(self, steps: Mapping[str | None, int]) -> None:
        """Count the steps that a training game gives."""
        self.train_games += 1
        for model, count in steps.items():
            self.produced[model or ""] = self.produced.get(model or "", 0) + count

    def consume(self, model: str | None, count: int) -> None:
        """Count steps of a model that are pending no more."""
        self.consumed[model or ""] = self.consumed.get(model or "", 0) + count


class ScheduleState(PendingSteps, kw_only=True):
    """The result of :meth:`GameSchedule.state`: all but the checkpoints."""

    in_flight: tuple[GameStarted, ...]
    ended: dict[str, list[tuple[int, int]]]
    """By split, the ranges of games."""
    abandoned: tuple[str, ...]
    next_index: dict[str, int]
    evaluations: EvaluationsState
    pool: PoolState
    branches: BranchesState = BranchesState()
    updates: dict[str, int]


class GameSchedule:
    """The collector's state. Pass every event of the run to :meth:`apply`, in any topic order.

    It grows with games in flight, evaluations under way, checkpoints, and games that were given up and never
    finished; not with the games played.
    """

    def __init__(self, run_id: str, config: RunConfig, started: RunStarted | None = None) -> None:
        """``started`` matters for a forked run, which begins at its parent's point."""
        self._run_id = run_id
        self._config = config
        self._first_update = started.parent_update or 0 if started else 0
        self.pool = build_pool(config)
        self._fixed = {o.name: o for o in (*config.evaluation.opponents, *config.model_pool.fixed)}
        self.in_flight: dict[str, GameStarted] = {}
        self._ended = {"train": IndexSet(), "eval": IndexSet()}
        """Finished or abandoned games."""
        self._abandoned: dict[str, None] = {}
        """The latest abandoned games, in order: these may still be finished."""
        self._next_index = {"train": started.parent_games if started else 0, "eval": 0}
        self._checkpoints: dict[str, Checkpoint] = {}
        self.evaluations = Evaluations(config, self._first_update, self.pool, self._checkpoints)
        self._reward_groups = {group_of(RewardProcessor.name, run) for run in (run_id, None)}
        """The groups that make steps of the run's trajectories."""
        self.pending = PendingSteps()
        self._branches = Branches(config.collector)
        self._updates = {model or "": self._first_update for model in config.model_names}
        """By trained model, ``""`` is the only one, its last update."""

    @property
    def _filtering(self) -> bool:
        return self._config.collector.filter_opponent_invalid

    # -- fold ---------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Fold one event; repeated events and those of other runs change nothing."""
        if isinstance(event, RecordRejected):
            self._apply_rejected(event)
            return
        if event.run_id != self._run_id or isinstance(event, RunStarted):
            return
        if isinstance(event, GameStarted | GameAbandoned | GameOutcome) and event.split not in self._ended:
            return  # nothing that this version plays
        self.pool.apply(event)  # first: evaluations ask it for partners
        if isinstance(event, GameStarted):
            self._apply_started(event)
        elif isinstance(event, GameOutcome | GameAbandoned):
            self._apply_ended(event)
        elif isinstance(event, Checkpoint):
            if event.model_uid not in self._checkpoints:
                self._checkpoints[event.model_uid] = event
                self.evaluations.add(event)
        elif isinstance(event, LearnerUpdate):
            model = event.model or ""
            if event.update > self._updates.get(model, event.update):
                self._updates[model] = event.update
                self.pending.consume(event.model, len(event.step_ids) + len(event.dropped))
        elif isinstance(event, StepsDropped) and event.event_id not in self.pending.drops:
            self.pending.drops.add(event.event_id)
            self.pending.consume(event.model, len(event.dropped))
            self.pending.steps_quarantined += sum(drop.reason == UNREADABLE for drop in event.dropped)

    def _apply_started(self, event: GameStarted) -> None:
        index = event.game_index
        if index < self._next_index[event.split]:
            return
        self._next_index[event.split] = index + 1
        self._branches.begin(event)
        self.evaluations.begin(event)
        if index not in self._ended[event.split]:
            self.in_flight[event.game_id] = event

    def _apply_ended(self, event: GameOutcome | GameAbandoned) -> None:
        if not self._ended[event.split].add(event.game_index) and event.game_id not in self._abandoned:
            return
        self.in_flight.pop(event.game_id, None)
        if isinstance(event, GameAbandoned):
            # This end is not final: the worker of a dead collector may still finish the game. Then it counts,
            # as for every reader of outcomes.
            self._abandoned[event.game_id] = None
            if len(self._abandoned) > _MOST_ABANDONED:
                del self._abandoned[next(iter(self._abandoned))]
            return
        self._abandoned.pop(event.game_id, None)
        if event.split == "train":
            self.pending.produce(expected_steps_of(event, filter_opponent_invalid=self._filtering))
            self._branches.choose(event)

    def _apply_rejected(self, letter: RecordRejected) -> None:
        """Count the steps that its game's outcome promised as consumed: the letter holds the trajectory.

        The letter of a host of all runs names no run, and that of a record that is no event promises nothing.
        """
        event = rejected_event(letter) if letter.consumer in self._reward_groups else None
        if not isinstance(event, Trajectory) or event.run_id != self._run_id:
            return
        filtered = self._filtering and event.opponent_invalid
        counts = event.trained and event.split == "train" and not filtered
        if counts and event.event_id not in self.pending.quarantined:
            self.pending.quarantined.add(event.event_id)
            self.pending.consume(trained_model(event.model_uid), len(event.turns))
            self.pending.steps_quarantined += len(event.turns)

    def state(self) -> ScheduleState:
        """Return the state of the fold, without the checkpoints."""
        return ScheduleState(
            in_flight=tuple(self.in_flight.values()),
            ended={split: ended.ranges() for split, ended in self._ended.items()},
            abandoned=tuple(self._abandoned),
            next_index=dict(self._next_index),
            evaluations=self.evaluations.state(),
            pool=self.pool.state(),
            branches=self._branches.state(),
            updates=dict(self._updates),
            **msgspec.structs.asdict(copy.deepcopy(self.pending)),
        )

    def load_state(self, state: ScheduleState, checkpoints: Iterable[Checkpoint]) -> None:
        """Let a fresh schedule of the same run and settings go on from a state.

        ``checkpoints``: all of them, in the order in which they came.
        """
        self._checkpoints.update((each.model_uid, each) for each in checkpoints)
        self.pool.load_state(state.pool, self._checkpoints.values())
        self.evaluations.load_state(state.evaluations)
        self.in_flight = {game.game_id: game for game in state.in_flight}
        self._ended = {split: IndexSet(ranges) for split, ranges in state.ended.items()}
        self._abandoned = dict.fromkeys(state.abandoned)
        self._next_index = dict(state.next_index)
        self._branches.load_state(state.branches)
        pending = {name: getattr(state, name) for name in PendingSteps.__struct_fields__}
        self.pending = copy.deepcopy(PendingSteps(**pending))
        self._updates |= state.updates

    # -- what is known ------------------------------------------------------------------------

    @property
    def training_finished(self) -> bool:
        """True if every model has had its last update, or there is none to make."""
        return all(map(self._is_trained, self._updates))

    def _is_trained(self, model: str | None) -> bool:
        return self._updates[model or ""] >= self._config.learner.iterations

    def _have_checkpoint_of(self, update: int) -> bool:
        """Return whether all models that play have a checkpoint of ``update``, or a later one.

        In a run that trains nothing those play that have a checkpoint at all.
        """
        have = {c.model or "" for c in self._checkpoints.values() if c.iteration >= update}
        trains = self._config.learner.iterations > self._first_update
        return bool(have) and (not trains or have == self._updates.keys())

    @property
    def finished(self) -> bool:
        """True if no game is left to play: training is over and the last checkpoint is evaluated.

        The last update may arrive before its checkpoint: they are on different topics.
        """
        return (
            self.training_finished
            and self._have_checkpoint_of(self._config.learner.iterations)
            and not self.in_flight
            and next(self._eval_games(0), None) is None
        )

    @property
    def checkpoints(self) -> Mapping[str, Checkpoint]:
        """All checkpoints by uid, in the order in which they came."""
        return self._checkpoints

    def games_in_flight(self, split: str) -> int:
        """Return the number of unfinished games of a split."""
        return sum(1 for game in self.in_flight.values() if game.split == split)

    def snapshot(self) -> dict[str, float]:
        """Return the pool, and the present share of each training environment, as metrics."""
        values = self.pool.snapshot()
        for env, share in zip(self._config.train_envs, self.environment_shares(), strict=True):
            name = f"curriculum/{env.env_id}/share"
            values[name] = values.get(name, 0.0) + share  # one environment may be listed with two templates
        return values

    # -- decisions ----------------------------------------------------------------------------

    def next_games(self, now_ms: int, at_most: int = 64) -> list[GameStarted]:
        """Return the games to start now. The caller publishes them and then passes them to :meth:`apply`."""
        if not self._have_checkpoint_of(self._first_update):
            return []
        settings = self._config.collector
        games: list[GameStarted] = []
        if not (self.training_finished or self._config.imitates):
            expected = {model: self._expected(model) for model in self._updates}
            room = settings.num_workers - self.games_in_flight("train")
            index = self._next_index["train"]
            # A resumed run may play other environments.
            branches = (each for each in self._branches.wanted() if self._env_of(each) is not None)
            while room > 0 and len(games) < at_most:
                branched = next(branches, None)
                game = (
                    self._train_game(index, now_ms)
                    if branched is None
                    else self._branch_game(index, branched, now_ms)
                )
                models = {trained_model(seat.model_uid) or "" for seat in game.seats if seat.trained}
                # All that learn from it must have room; one that has none makes an update, so none waits for
                # ever.
                if any(expected[model] >= self._config.max_pending_steps for model in models):
                    break
                games.append(game)
                index += 1
                room -= 1
                for model in models:
                    expected[model] += self.pending.per_game(model)
        room = settings.num_eval_workers - self.games_in_flight("eval")
        for _, game in zip(range(max(0, room)), self._eval_games(now_ms), strict=False):
            games.append(game)
        return games

    def _expected(self, model: str) -> float:
        """Return how many steps will wait for a model when the games in flight are over."""
        playing = sum(
            any(seat.trained and (trained_model(seat.model_uid) or "") == model for seat in game.seats)
            for game in self.in_flight.values()
            if game.split == "train"
        )
        return self.pending.of(model) + playing * self.pending.per_game(model)

    def _train_game(self, index: int, now_ms: int) -> GameStarted:
        seed = train_game_seed(self._config.seed, index)
        rng = random.Random(derive_seed(seed, "schedule"))
        env = rng.choices(self._config.train_envs, weights=self.environment_shares())[0]
        seating = seating_of(self._config, env, seed)
        # Where roles are dealt, perhaps only to models that learn no more: then nobody learns from this game.
        open_seats = self._open_seats(env, seating) or list(range(env.num_players))
        sides = list(dict.fromkeys(map(seating.side, open_seats)))
        mine = sides[index % len(sides)]
        me = self._current(env, next(seat for seat in open_seats if seating.side(seat) == mine), seating)
        drawn: dict[int, str | None] = {}
        """By side, its opponent; ``None``: the newest checkpoints."""
        seats = []
        for seat in range(env.num_players):
            model, side = model_in(self._config, env, seat, seating), seating.side(seat)
            current = self._current(env, seat, seating)
            if side not in drawn:
                mirrored = side == mine or rng.random() < self._config.model_pool.mirror_fraction
                drawn[side] = None if mirrored else self.pool.sample(me, rng, env.env_id, model)
                if drawn[side] == current:
                    drawn[side] = None  # the partners' newest, whatever their updates
            opponent = drawn[side]
            uid = current if opponent is None else self.pool.partner_of(opponent, model)
            trained = opponent is None and not self._is_trained(model)
            seats.append(self._seat(seat, uid, env, seating, trained=trained))
        return self._started("train", index, env, seed, tuple(seats), now_ms)

    def _env_of(self, branched: Branched) -> EnvConfig | None:
        played = (branched.env_id, len(branched.seats))
        return next((env for env in self._config.train_envs if (env.env_id, env.num_players) == played), None)

    def _branch_game(self, index: int, branched: Branched, now_ms: int) -> GameStarted:
        """Return a game of the newest checkpoint from a position, against those that were there."""
        env = self._env_of(branched)
        assert env is not None, "others are passed over"
        seed = train_game_seed(self._config.seed, index)
        seating = seating_of(self._config, env, branched.position.seed)
        active = {member.uid for member in self.pool.members() if member.active}
        seats = []
        for was in branched.seats:
            model = model_in(self._config, env, was.seat, seating)
            stays = not was.trained and was.model_uid in active
            uid = was.model_uid if stays else self._current(env, was.seat, seating)
            trained = was.trained and not self._is_trained(model)
            seats.append(self._seat(was.seat, uid, env, seating, trained=trained))
        start = (branched.position, branched.moves)
        return self._started("train", index, env, seed, tuple(seats), now_ms, start=start)

    def _open_seats(self, env: EnvConfig, seating: Seating) -> list[int]:
        """Return the seats of the models that still learn."""
        return [
            seat
            for seat in range(env.num_players)
            if not self._is_trained(model_in(self._config, env, seat, seating))
        ]

    def _current(self, env: EnvConfig, seat: int, seating: Seating) -> str:
        current = self.pool.current_uid(model_in(self._config, env, seat, seating))
        assert current is not None, "a checkpoint of every model has been applied"
        return current

    def environment_shares(self) -> list[float]:
        """Return the present probability of each training environment's draw; 0 where nobody learns any more,
        while others learn elsewhere.
        """
        envs, curriculum = self._config.train_envs, self._config.curriculum
        shares = environment_shares(
            curriculum.mode,
            [env.weight for env in envs],
            [self.pool.results.in_env(env.env_id) for env in envs],
            curriculum.floor,
        )
        if self.training_finished:
            return shares
        is_open = [not all(map(self._is_trained, self._config.models_of(env))) for env in envs]
        if not any(share for share, there in zip(shares, is_open, strict=True) if there):
            shares = [env.weight for env in envs]  # the curriculum wants none of those where somebody learns
        return [share if there else 0.0 for share, there in zip(shares, is_open, strict=True)]

    def _eval_games(self, now_ms: int) -> Iterator[GameStarted]:
        for index, match in enumerate(self.evaluations.wanted(), self._next_index["eval"]):
            env, seed, players, evaluated = match
            seating = seating_of(self._config, env, seed)
            seats = tuple(self._seat(seat, uid, env, seating) for seat, uid in enumerate(players))
            branch = self._config.evaluation.branch
            start = None if branch is None else (branch.position, branch.moves)
            yield self._started("eval", index, env, seed, seats, now_ms, evaluated, start)

    def _seat(self, seat: int, uid: str, env: EnvConfig, seating: Seating, *, trained: bool = False) -> Seat:
        team, role = seating.teams[seat], seating.roles.get(seat)
        checkpoint = self._checkpoints.get(uid)
        if checkpoint is None:
            opponent = self.opponent(uid)
            own = opponent.template if opponent.kind in ("openai", "model") else None
            template = env.template if opponent.kind == "adapter" else own
            return Seat(seat=seat, model_uid=uid, kind=opponent.kind, template=template, team=team, role=role)
        return Seat(
            seat=seat,
            model_uid=uid,
            kind="checkpoint",
            policy_version=checkpoint.iteration,
            parent_uid=checkpoint.parent_uid,
            template=env.template,
            trained=trained,
            team=team,
            role=role,
        )

    def opponent(self, uid: str) -> OpponentConfig:
        """Return the configuration of a fixed opponent."""
        return self._fixed[uid]

    def _started(
        self,
        split: str,
        index: int,
        env: EnvConfig,
        seed: int,
        seats: tuple[Seat, ...],
        now_ms: int,
        evaluated_uid: str | None = None,
        start: tuple[GamePosition, tuple[Action, ...]] | None = None,
    ) -> GameStarted:
        position, moves = start or (None, ())
        return GameStarted(
            event_id=event_id(self._run_id, "game-started", split, index),
            run_id=self._run_id,
            occurred_at_ms=now_ms,
            game_id=game_id(self._run_id, split, index),
            game_index=index,
            split=split,
            env_id=env.env_id,
            seed=seed,
            seats=seats,
            evaluated_uid=evaluated_uid,
            position=position,
            moves=moves,
        )
