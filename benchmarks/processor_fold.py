"""Throughput of the processors' pure path (decode + fold + encode) against bare decoding of the same bytes.

Run as ``python benchmarks/processor_fold.py``; prints one JSON object. Target: at least half of bare decoding
for the reward processor.
"""

import gc
import json
import platform
import time
from collections.abc import Callable, Sequence

import numpy as np

from unstable_stream.eventlog.records import record_from_event
from unstable_stream.events import (
    Action,
    Event,
    GameOutcome,
    SeatResult,
    Trajectory,
    Turn,
    checkpoint_uid,
    decode_event,
    encode_event,
    event_id,
    game_id,
    pack_floats,
    pack_tokens,
    trajectory_id,
)
from unstable_stream.model_pool import RatingProcessor
from unstable_stream.reward_transformations import RewardProcessor, build_final, build_step

RUN = "bench"
REPEATS = 5

SHAPES = {
    # name: turns, prompt tokens, completion tokens, characters a token
    "tiny player": (5, 60, 12, 3),
    "language model": (6, 500, 250, 4),
}


def trajectories(games: int, turns: int, prompt: int, completion: int, chars: int) -> list[bytes]:
    """Encoded mirror games, two trajectories each."""
    rng = np.random.default_rng(0)
    encoded = []
    for index in range(games):
        game = game_id(RUN, "train", index)
        for seat in (0, 1):
            played = tuple(
                Turn(
                    turn_index=turn,
                    game_turn=2 * turn + seat,
                    observation="o" * (chars * prompt // 2),
                    prompt="p" * (chars * prompt),
                    prompt_token_ids=pack_tokens(rng.integers(0, 150_000, prompt)),
                    completion="c" * (chars * completion),
                    completion_token_ids=pack_tokens(rng.integers(0, 150_000, completion)),
                    logprobs=pack_floats(rng.standard_normal(completion)),
                    finish_reason="stop",
                    action="[4]",
                    format_feedback={"correct_answer_format": True},
                    policy_version=3,
                )
                for turn in range(turns)
            )
            reward = 1.0 if seat == index % 2 else -1.0
            encoded.append(
                encode_event(
                    Trajectory(
                        event_id=trajectory_id(game, seat),
                        run_id=RUN,
                        occurred_at_ms=index,
                        game_id=game,
                        game_index=index,
                        split="train",
                        env_id="SimpleTak-v0-train",
                        seed=index,
                        seat=seat,
                        model_uid=checkpoint_uid(3),
                        policy_version=3,
                        trained=True,
                        trained_seats=(0, 1),
                        turns=played,
                        rewards={0: -reward if seat else reward, 1: reward if seat else -reward},
                        reward=reward,
                        reason="win",
                    )
                )
            )
    return encoded


def outcomes(games: int, players: int) -> list[bytes]:
    """Encoded outcomes between checkpoints and fixed opponents."""
    encoded = []
    for index in range(games):
        game = game_id(RUN, "train", index)
        seats = tuple(
            SeatResult(
                seat=seat,
                model_uid=checkpoint_uid(index // 100) if seat == 0 else f"fixed-{seat}",
                kind="checkpoint" if seat == 0 else "scripted",
                reward=1.0 if seat == index % players else -1.0,
                rank=0 if seat == index % players else seat + 1,
                policy_version=index // 100 if seat == 0 else None,
            )
            for seat in range(players)
        )
        encoded.append(
            encode_event(
                GameOutcome(
                    event_id=event_id(RUN, "game-outcome", game),
                    run_id=RUN,
                    occurred_at_ms=index,
                    game_id=game,
                    game_index=index,
                    split="train",
                    env_id="SimpleTak-v0-train",
                    seed=index,
                    seats=seats,
                    reason="win",
                    actions=tuple(Action(i % players, f"[{i}]") for i in range(10)),
                )
            )
        )
    return encoded


def seconds(work: Callable[[], object]) -> float:
    """Best of several runs, the collector's pauses left out."""
    best = float("inf")
    for _ in range(REPEATS):
        gc.collect()
        gc.disable()
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
        gc.enable()
    return best


def compare(
    encoded: Sequence[bytes], make: Callable[[], RewardProcessor | RatingProcessor]
) -> dict[str, float]:
    """Time bare decoding and the whole path, in events a second."""

    def decode() -> None:
        for data in encoded:
            decode_event(data)

    def whole() -> int:
        processor = make()
        published = 0
        for data in encoded:
            outputs: Sequence[Event] = processor.handle(decode_event(data))
            for output in outputs:
                record_from_event(output)
            published += len(outputs)
        return published

    def fold_only() -> None:
        processor = make()
        for event in decoded:
            processor.handle(event)

    decoded = [decode_event(data) for data in encoded]
    assert whole() > 0
    bare, path, fold = seconds(decode), seconds(whole), seconds(fold_only)
    return {
        "event_bytes": round(sum(map(len, encoded)) / len(encoded)),
        "bare_decode_per_s": round(len(encoded) / bare),
        "decode_fold_encode_per_s": round(len(encoded) / path),
        "fold_only_per_s": round(len(encoded) / fold),
        "ratio": round(bare / path, 3),
    }


def reward_processor() -> RewardProcessor:
    """The quick start's transformations."""
    return RewardProcessor(
        RUN,
        build_final([{"type": "RoleAdvantageByEnvFormatter"}]),
        build_step(
            [{"type": "RewardForFormat", "reward": 1.5}, {"type": "PenaltyForInvalidMove", "penalty": -1.0}]
        ),
    )


def main() -> None:
    """Run all and print JSON."""
    results = {
        f"rewards, {name}": compare(trajectories(400, *shape), reward_processor)
        for name, shape in SHAPES.items()
    }
    results["ratings, 2 players"] = compare(outcomes(2000, 2), lambda: RatingProcessor(RUN))
    results["ratings, 4 players"] = compare(outcomes(100, 4), lambda: RatingProcessor(RUN))
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    print(json.dumps({"machine": machine, "results": results}, indent=2))


if __name__ == "__main__":
    main()
