"""A small made-up history whose every number can be worked out by hand; other tests may use it too.

Train game ``i`` is played by policy ``i // GAMES_PER_UPDATE`` in seat ``i % 2`` against ``random``; it wins,
loses or draws as ``i % 3`` is 0, 1 or 2, and lasts ``2 + i % 5`` moves, seats alternating from seat 0. Turn
``t`` of the policy has ``4 + i % 3 + t`` completion tokens. Each update trains on all steps of its policy's
games but the last step, which is dropped as ``overflow``. Each checkpoint first plays two evaluation games of
five moves, one per seat; it wins as seat 0 from the second checkpoint on, and always loses as seat 1.
"""

from dataclasses import dataclass
from typing import Any

from unstable_stream.events import (
    Action,
    Checkpoint,
    DroppedStep,
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Metrics,
    Rating,
    RunFinished,
    RunStarted,
    Seat,
    SeatResult,
    Step,
    Trajectory,
    Turn,
    checkpoint_uid,
    event_id,
    game_id,
    pack_floats,
    pack_tokens,
    step_id,
    trajectory_id,
)
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.records import record_from_event

ENV = "TicTacToe-v0-train"
GAMES_PER_UPDATE = 4
START_MS = 1_700_000_000_000
_GAME_MS = 1000
_RESULTS = {"win": (1.0, -1.0), "loss": (-1.0, 1.0), "draw": (0.0, 0.0)}


@dataclass(frozen=True)
class _Game:
    """One game against ``random``."""

    run_id: str
    split: str
    index: int
    version: int
    seat: int
    result: str
    moves: int
    at_ms: int

    @property
    def game_id(self) -> str:
        return game_id(self.run_id, self.split, self.index)

    @property
    def trained(self) -> bool:
        return self.split == "train"

    @property
    def trajectory_id(self) -> str:
        return trajectory_id(self.game_id, self.seat)

    def model(self, seat: int) -> str:
        return checkpoint_uid(self.version) if seat == self.seat else "random"

    def kind(self, seat: int) -> str:
        return "checkpoint" if seat == self.seat else "scripted"

    def policy_version(self, seat: int) -> int | None:
        return self.version if seat == self.seat else None

    def reward(self, seat: int) -> float:
        return _RESULTS[self.result][0 if seat == self.seat else 1]

    def rank(self, seat: int) -> int:
        return int(self.reward(seat) < 0)

    def turns(self, seat: int) -> list[int]:
        """Game turns of a seat: seats alternate from seat 0."""
        return [turn for turn in range(self.moves) if turn % 2 == seat]

    def _head(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "game_id": self.game_id,
            "game_index": self.index,
            "split": self.split,
            "env_id": ENV,
            "seed": 1000 + self.index,
        }

    def started(self) -> GameStarted:
        return GameStarted(
            event_id=event_id(self.run_id, "game-started", self.split, self.index),
            occurred_at_ms=self.at_ms,
            **self._head(),
            seats=tuple(
                Seat(
                    seat=seat,
                    model_uid=self.model(seat),
                    kind=self.kind(seat),
                    policy_version=self.policy_version(seat),
                    template="default" if seat == self.seat else None,
                    trained=self.trained and seat == self.seat,
                )
                for seat in (0, 1)
            ),
            evaluated_uid=None if self.trained else self.model(self.seat),
        )

    def outcome(self) -> GameOutcome:
        return GameOutcome(
            event_id=event_id(self.run_id, "game-outcome", self.game_id),
            occurred_at_ms=self.at_ms + _GAME_MS,
            **self._head(),
            seats=tuple(
                SeatResult(
                    seat=seat,
                    model_uid=self.model(seat),
                    kind=self.kind(seat),
                    reward=self.reward(seat),
                    rank=self.rank(seat),
                    policy_version=self.policy_version(seat),
                    trained=self.trained and seat == self.seat,
                    turns=len(self.turns(seat)),
                )
                for seat in (0, 1)
            ),
            reason="draw" if self.result == "draw" else "win",
            actions=tuple(Action(turn % 2, f"[{turn}]") for turn in range(self.moves)),
            num_turns=self.moves,
            duration_ms=float(_GAME_MS),
            evaluated_uid=None if self.trained else self.model(self.seat),
        )

    def trajectory(self) -> Trajectory:
        return Trajectory(
            event_id=self.trajectory_id,
            occurred_at_ms=self.at_ms + _GAME_MS,
            **self._head(),
            seat=self.seat,
            model_uid=self.model(self.seat),
            policy_version=self.version,
            template="default",
            trained=self.trained,
            trained_seats=(self.seat,) if self.trained else (),
            opponents=("random",),
            turns=tuple(self._turn(index, turn) for index, turn in enumerate(self.turns(self.seat))),
            rewards={seat: self.reward(seat) for seat in (0, 1)},
            reward=self.reward(self.seat),
            reason="draw" if self.result == "draw" else "win",
        )

    def _turn(self, index: int, game_turn: int) -> Turn:
        tokens = self._completion_tokens(index)
        observation = f"[GAME] Board after {game_turn} moves."
        return Turn(
            turn_index=index,
            game_turn=game_turn,
            observation=observation,
            prompt=f"<|user|>{observation}<|assistant|>",
            prompt_token_ids=pack_tokens(range(20 + game_turn)),
            completion=f"I take \\boxed{{{game_turn}}}",
            completion_token_ids=pack_tokens(range(100, 100 + tokens)),
            logprobs=pack_floats([-0.5] * tokens),
            finish_reason="stop",
            action=f"[{game_turn}]",
            format_feedback={"correct_answer_format": True},
            step_info={"turn": game_turn},
            policy_version=self.version,
            latency_ms=12.5,
        )

    def _completion_tokens(self, turn_index: int) -> int:
        return 4 + self.index % 3 + turn_index

    def steps(self) -> list[Step]:
        turns = self.turns(self.seat)
        return [
            Step(
                event_id=step_id(self.trajectory_id, index),
                run_id=self.run_id,
                occurred_at_ms=self.at_ms + _GAME_MS,
                trajectory_id=self.trajectory_id,
                game_id=self.game_id,
                game_index=self.index,
                env_id=ENV,
                seat=self.seat,
                turn_index=index,
                num_turns=len(turns),
                model_uid=self.model(self.seat),
                policy_version=self.version,
                prompt_token_ids=pack_tokens(range(20 + turn)),
                completion_token_ids=pack_tokens(range(100, 100 + self._completion_tokens(index))),
                logprobs=pack_floats([-0.5] * self._completion_tokens(index)),
                raw_reward=self.reward(self.seat),
                final_reward=self.reward(self.seat) - 0.25,
                reward=self.reward(self.seat) - 0.25 + 0.125,
            )
            for index, turn in enumerate(turns)
        ]

    def rating(self, games: int) -> Rating:
        uid = self.model(self.seat)
        return Rating(
            event_id=event_id(self.run_id, "rating", self.game_id, ENV, uid),
            run_id=self.run_id,
            occurred_at_ms=self.at_ms + _GAME_MS,
            env_id=ENV,
            model_uid=uid,
            mu=25.0 + self.version + games / 8,
            sigma=8.0 / (1 + games),
            games=games,
            game_id=self.game_id,
        )


def made_up_run(run_id: str = "run-a", updates: int = 6, *, finished: bool = True) -> list[Event]:
    """Return the events of a whole run in the order they would be published.

    After the last update one more game is started and left in flight, and another is abandoned.
    """
    events: list[Event] = [
        RunStarted(
            event_id=event_id(run_id, "run-started"),
            run_id=run_id,
            occurred_at_ms=START_MS,
            name=f"made up {run_id}",
            seed=7,
            config={"learner": {"iterations": updates}},
            package_version="0.1.0",
        ),
        _checkpoint(run_id, 0, START_MS),
    ]
    moment = START_MS
    rated = dict.fromkeys(range(updates + 1), 0)
    for version in range(updates + 1):
        games = [
            _Game(run_id, "eval", 2 * version + seat, version, seat, _eval_result(version, seat), 5, moment)
            for seat in (0, 1)
        ]
        if version < updates:
            games += [_train_game(run_id, index, moment) for index in _games_of(version)]
        steps: list[Step] = []
        for game in games:
            events += [game.started(), game.trajectory(), game.outcome()]
            rated[version] += 1
            events.append(game.rating(rated[version]))
            moment += _GAME_MS
            if game.trained:
                steps += game.steps()
                events += game.steps()
        if version < updates:
            events += _update(run_id, version + 1, steps, moment)
    extra = _train_game(run_id, updates * GAMES_PER_UPDATE, moment)
    lost = _train_game(run_id, updates * GAMES_PER_UPDATE + 1, moment)
    events += [
        extra.started(),
        lost.started(),
        GameAbandoned(
            event_id=event_id(run_id, "game-abandoned", lost.game_id),
            run_id=run_id,
            occurred_at_ms=moment,
            game_id=lost.game_id,
            game_index=lost.index,
            split="train",
            reason="engine failed",
        ),
    ]
    if finished:
        events.append(
            RunFinished(
                event_id=event_id(run_id, "run-finished", 0),
                run_id=run_id,
                occurred_at_ms=moment + _GAME_MS,
                outcome="completed",
                updates=updates,
            )
        )
    return events


def stored(events: list[Event], partitions: int = 2) -> list[StoredRecord]:
    """Return the records a consumer would read: offsets count up within each partition."""
    ends: dict[tuple[str, int], int] = {}
    records = []
    for event in events:
        record = record_from_event(event)
        partition = sum(record.key.encode()) % partitions
        offset = ends.get((record.topic, partition), 0)
        ends[record.topic, partition] = offset + 1
        records.append(
            StoredRecord(
                record.topic,
                partition,
                offset,
                record.key,
                record.value,
                record.headers,
                record.timestamp_ms,
            )
        )
    return records


def _games_of(version: int) -> range:
    return range(version * GAMES_PER_UPDATE, (version + 1) * GAMES_PER_UPDATE)


def _train_game(run_id: str, index: int, moment: int) -> _Game:
    result = ("win", "loss", "draw")[index % 3]
    return _Game(run_id, "train", index, index // GAMES_PER_UPDATE, index % 2, result, 2 + index % 5, moment)


def _eval_result(version: int, seat: int) -> str:
    return "win" if seat == 0 and version >= 1 else "loss"


def _checkpoint(run_id: str, iteration: int, moment: int) -> Checkpoint:
    return Checkpoint(
        event_id=event_id(run_id, "checkpoint", iteration),
        run_id=run_id,
        occurred_at_ms=moment,
        model_uid=checkpoint_uid(iteration),
        iteration=iteration,
        path=f"checkpoints/{run_id}/{checkpoint_uid(iteration)}" if iteration else None,
        sha256="ab" * 32 if iteration else None,
        size_bytes=4096 if iteration else 0,
        base_model="tiny",
        lora={"r": 8} if iteration else {},
        parent_uid=checkpoint_uid(iteration - 1) if iteration else None,
    )


def _update(run_id: str, update: int, steps: list[Step], moment: int) -> list[Event]:
    return [
        LearnerUpdate(
            event_id=event_id(run_id, "learner-update", update),
            run_id=run_id,
            occurred_at_ms=moment,
            update=update,
            step_ids=tuple(step.step_id for step in steps[:-1]),
            dropped=(DroppedStep(steps[-1].step_id, "overflow"),),
            loss=1.0 / update,
            metrics={
                "grad_norm": 0.5 * update,
                "is_ratio_mean": 1.0 + update / 8,
                "is_ratio_max": 2.0,
                "is_clipped_fraction": 0.25,
                "approx_kl": update / 16,
            },
            model_uid=checkpoint_uid(update),
            positions={"steps[0]": update},
            duration_ms=250.0,
        ),
        _checkpoint(run_id, update, moment),
        Metrics(
            event_id=event_id(run_id, "metrics", "learner", update),
            run_id=run_id,
            occurred_at_ms=moment,
            source="learner",
            values={"learner/loss": 1.0 / update, "learner/tokens": 64.0},
            update=update,
        ),
        *([_exploitability(run_id, update, moment)] if update == 1 else []),
    ]


def _exploitability(run_id: str, update: int, moment: int) -> Metrics:
    numbers = {
        "nash-conv": 0.5,
        "exploitability": 0.25,
        "gain/seat-0": 0.125,
        "gain/seat-1": 0.375,
        "value/seat-0": -0.0625,
        "value/seat-1": 0.0625,
        "illegal-mass": 0.25,
        "illegal-mass-max": 0.5,
        "uniform-nash-conv": 0.9167,
    }
    return Metrics(
        event_id=event_id(run_id, "metrics", "exploitability", update),
        run_id=run_id,
        occurred_at_ms=moment,
        source="exploitability",
        values={
            **{f"exploitability-openspiel:kuhn_poker/{name}": value for name, value in numbers.items()},
            "exploitability-openspiel:nim(pile_sizes='1;2')/failed": 1.0,
        },
        update=update,
    )
