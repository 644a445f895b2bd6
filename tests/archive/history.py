"""A small made-up history whose every number can be worked out by hand; other tests may use it too.

Train game ``i`` is played by policy ``i // GAMES_PER_UPDATE`` in seat ``i % 2`` against ``random``; it wins,
loses or draws as ``i % 3`` is 0, 1 or 2, and lasts ``2 + i % 5`` moves, seats alternating from seat 0. Turn
``t`` of the policy has ``4 + i % 3 + t`` completion tokens. Each update trains on all steps of its policy's
games but the last step, which is dropped as ``overflow``. Each checkpoint first plays two evaluation games of
five moves, one per seat; it wins as seat 0 from the second checkpoint on, and always loses as seat 1.
"""

import random
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.builders import made
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
    pack_floats,
    pack_tokens,
)
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.records import record_from_event

ENV = "TicTacToe-v0-train"
GAMES_PER_UPDATE = 4
START_MS = 1_700_000_000_000
_GAME_MS = 1000
_REWARDS = {"win": 1.0, "loss": -1.0, "draw": 0.0}


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
    def trained(self) -> bool:
        return self.split == "train"

    def player(self, seat: int) -> dict[str, Any]:
        """Return the fields that seats have before and after the game."""
        if seat != self.seat:
            return {"seat": seat, "model_uid": "random", "kind": "scripted", "policy_version": None}
        return {"seat": seat, "policy_version": self.version, "trained": self.trained}

    def reward(self, seat: int) -> float:
        return _REWARDS[self.result] if seat == self.seat else 0.0 - _REWARDS[self.result]

    def turns(self, seat: int) -> range:
        """Return the game turns of a seat: seats alternate from seat 0."""
        return range(seat, self.moves, 2)

    def started(self) -> GameStarted:
        templates = ("default" if seat == self.seat else None for seat in (0, 1))
        return made(
            GameStarted,
            run_id=self.run_id,
            occurred_at_ms=self.at_ms,
            game_index=self.index,
            split=self.split,
            seed=1000 + self.index,
            seats=tuple(made(Seat, template=each, **self.player(s)) for s, each in enumerate(templates)),
            evaluated_uid=None if self.trained else checkpoint_uid(self.version),
        )

    def events(self, rated: int) -> tuple[GameStarted, Trajectory, GameOutcome, Rating]:
        """Return all events but the steps; ``rated`` games of the policy were rated, this one included."""
        started = self.started()
        end = {"occurred_at_ms": self.at_ms + _GAME_MS, "reason": "draw" if self.result == "draw" else "win"}
        outcome = made(
            GameOutcome,
            started,
            seats=tuple(
                made(
                    SeatResult,
                    reward=self.reward(seat),
                    rank=int(self.reward(seat) < 0),
                    turns=len(self.turns(seat)),
                    **self.player(seat),
                )
                for seat in (0, 1)
            ),
            actions=tuple(Action(turn % 2, f"[{turn}]") for turn in range(self.moves)),
            num_turns=self.moves,
            duration_ms=float(_GAME_MS),
            evaluated_uid=started.evaluated_uid,
            **end,
        )
        trajectory = made(
            Trajectory,
            started,
            seat=self.seat,
            policy_version=self.version,
            template="default",
            trained=self.trained,
            trained_seats=(self.seat,) if self.trained else (),
            opponents=("random",),
            turns=tuple(self._turn(index, turn) for index, turn in enumerate(self.turns(self.seat))),
            rewards={seat: self.reward(seat) for seat in (0, 1)},
            reward=self.reward(self.seat),
            **end,
        )
        rating = made(
            Rating,
            outcome,
            occurred_at_ms=outcome.occurred_at_ms,
            model_uid=trajectory.model_uid,
            mu=25.0 + self.version + rated / 8,
            sigma=8.0 / (1 + rated),
            games=rated,
        )
        return started, trajectory, outcome, rating

    def _turn(self, index: int, game_turn: int) -> Turn:
        tokens = 4 + self.index % 3 + index
        observation = f"[GAME] Board after {game_turn} moves."
        return made(
            Turn,
            turn_index=index,
            game_turn=game_turn,
            observation=observation,
            prompt=f"<|user|>{observation}<|assistant|>",
            prompt_token_ids=pack_tokens(range(20 + game_turn)),
            completion=f"I take \\boxed{{{game_turn}}}",
            completion_token_ids=pack_tokens(range(100, 100 + tokens)),
            logprobs=pack_floats([-0.5] * tokens),
            action=f"[{game_turn}]",
            format_feedback={"correct_answer_format": True},
            step_info={"turn": game_turn},
            policy_version=self.version,
            latency_ms=12.5,
        )


def _steps(trajectory: Trajectory) -> list[Step]:
    return [
        made(
            Step,
            trajectory,
            occurred_at_ms=trajectory.occurred_at_ms,
            seat=trajectory.seat,
            turn_index=turn.turn_index,
            num_turns=len(trajectory.turns),
            policy_version=trajectory.policy_version,
            prompt_token_ids=turn.prompt_token_ids,
            completion_token_ids=turn.completion_token_ids,
            logprobs=turn.logprobs,
            raw_reward=trajectory.reward,
            final_reward=trajectory.reward - 0.25,
            reward=trajectory.reward - 0.25 + 0.125,
        )
        for turn in trajectory.turns
    ]


def made_up_run(run_id: str = "run-a", updates: int = 6, *, finished: bool = True) -> list[Event]:
    """Return the events of a whole run in the order they would be published.

    After the last update one more game is started and left in flight, and another is abandoned.
    """
    started = made(
        RunStarted,
        run_id=run_id,
        occurred_at_ms=START_MS,
        name=f"made up {run_id}",
        seed=7,
        config={"learner": {"iterations": updates}},
        package_version="0.1.0",
    )
    events: list[Event] = [started, _checkpoint(run_id, 0, START_MS)]
    moment = START_MS
    for version in range(updates + 1):
        games = [
            _Game(run_id, "eval", 2 * version + seat, version, seat, _eval_result(version, seat), 5, moment)
            for seat in (0, 1)
        ]
        if version < updates:
            first = version * GAMES_PER_UPDATE
            games += [_train_game(run_id, first + number, moment) for number in range(GAMES_PER_UPDATE)]
        steps: list[Step] = []
        for rated, game in enumerate(games, 1):
            of_game = game.events(rated)
            new = _steps(of_game[1]) if game.trained else []
            events += [*of_game, *new]
            steps += new
            moment += _GAME_MS
        if version < updates:
            events += _update(run_id, version + 1, steps, moment)
    extra = _train_game(run_id, updates * GAMES_PER_UPDATE, moment).started()
    lost = _train_game(run_id, updates * GAMES_PER_UPDATE + 1, moment).started()
    events += [extra, lost, made(GameAbandoned, lost, occurred_at_ms=moment, reason="engine failed")]
    if finished:
        end: dict[str, Any] = {"occurred_at_ms": moment + _GAME_MS, "updates": updates}
        events.append(made(RunFinished, event_id=event_id(run_id, "run-finished", 0), run_id=run_id, **end))
    return events


def with_texts(run_id: str, updates: int = 6) -> list[Event]:
    """Return a run with a text of 200 kB in each trajectory that nothing can compress much."""
    chosen = random.Random(run_id)

    def padded(event: Event) -> Event:
        if not isinstance(event, Trajectory):
            return event
        turn = msgspec.structs.replace(event.turns[0], prompt=chosen.randbytes(100_000).hex())
        return msgspec.structs.replace(event, turns=(turn, *event.turns[1:]))

    return list(map(padded, made_up_run(run_id, updates)))


def stored(events: list[Event], partitions: int = 2) -> list[StoredRecord]:
    """Return the records a consumer would read: offsets count up within each partition."""
    ends: dict[tuple[str, int], int] = {}
    records = []
    for event in events:
        record = record_from_event(event)
        partition = sum(record.key.encode()) % partitions
        offset = ends.get((record.topic, partition), 0)
        ends[record.topic, partition] = offset + 1
        at = (record.topic, partition, offset)
        records.append(StoredRecord(*at, record.key, record.value, record.headers, record.timestamp_ms))
    return records


def _train_game(run_id: str, index: int, moment: int) -> _Game:
    result = ("win", "loss", "draw")[index % 3]
    return _Game(run_id, "train", index, index // GAMES_PER_UPDATE, index % 2, result, 2 + index % 5, moment)


def _eval_result(version: int, seat: int) -> str:
    return "win" if seat == 0 and version >= 1 else "loss"


def _checkpoint(run_id: str, iteration: int, moment: int) -> Checkpoint:
    adapter: dict[str, Any] = {
        "path": f"checkpoints/{run_id}/{checkpoint_uid(iteration)}",
        "sha256": "ab" * 32,
        "size_bytes": 4096,
        "lora": {"r": 8},
        "parent_uid": checkpoint_uid(iteration - 1),
    }
    return made(
        Checkpoint,
        run_id=run_id,
        occurred_at_ms=moment,
        iteration=iteration,
        base_model="tiny",
        **adapter if iteration else {},
    )


def _update(run_id: str, update: int, steps: list[Step], moment: int) -> list[Event]:
    head: dict[str, Any] = {"run_id": run_id, "occurred_at_ms": moment, "update": update}
    trained = made(
        LearnerUpdate,
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
        **head,
    )
    values = {"learner/loss": 1.0 / update, "learner/tokens": 64.0}
    measured = made(Metrics, event_id=event_id(run_id, "metrics", "learner", update), values=values, **head)
    return [
        trained,
        _checkpoint(run_id, update, moment),
        measured,
        *([made(Metrics, source="exploitability", values=_EXPLOITABILITY, **head)] if update == 1 else []),
    ]


_EXPLOITABILITY = {
    "exploitability-openspiel:kuhn_poker/nash-conv": 0.5,
    "exploitability-openspiel:kuhn_poker/exploitability": 0.25,
    "exploitability-openspiel:kuhn_poker/gain/seat-0": 0.125,
    "exploitability-openspiel:kuhn_poker/gain/seat-1": 0.375,
    "exploitability-openspiel:kuhn_poker/value/seat-0": -0.0625,
    "exploitability-openspiel:kuhn_poker/value/seat-1": 0.0625,
    "exploitability-openspiel:kuhn_poker/illegal-mass": 0.25,
    "exploitability-openspiel:kuhn_poker/illegal-mass-max": 0.5,
    "exploitability-openspiel:kuhn_poker/uniform-nash-conv": 0.9167,
    "exploitability-openspiel:nim(pile_sizes='1;2')/failed": 1.0,
}
