"""The processors' pure path (decode, fold, encode the results) against bare decoding of the same bytes.

Run ``python -m benchmarks.processor_fold``. Rates are input events a second of CPU time. One trajectory makes
five or six steps here and one outcome four ratings, so against decoding alone the ratio falls with the share
of output in the traffic. So each processor is also compared with its least work: decode the input, and encode
the same results, made before. The last rows are the rating fold alone, of columns of games as ``rerate`` has
them and with every rating kept as live rating has them, against the ``trueskill`` package.
"""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import trueskill

from benchmarks.harness import Comparison, compare, parser, report
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
from unstable_stream.log.records import record_from_event
from unstable_stream.model_pool import RatingProcessor, TrueSkill
from unstable_stream.model_pool.rating_columns import GameColumns, Names, RatingHistory
from unstable_stream.model_pool.ratings import Ratings
from unstable_stream.reward_transformations import RewardProcessor, build_final, build_step

RUN = "bench"

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


def decode(encoded: Sequence[bytes]) -> float:
    """The baseline: events decoded a second."""
    began = time.thread_time()
    for data in encoded:
        decode_event(data)
    return len(encoded) / (time.thread_time() - began)


def process(make: Callable[[], RewardProcessor | RatingProcessor], encoded: Sequence[bytes]) -> float:
    """The whole path, state empty at the start."""
    processor = make()
    published = 0
    began = time.thread_time()
    for data in encoded:
        for output in processor.handle(decode_event(data)):
            record_from_event(output)
            published += 1
    rate = len(encoded) / (time.thread_time() - began)
    assert published >= len(encoded)
    return rate


def decode_and_encode(encoded: Sequence[bytes], results: Sequence[Event]) -> float:
    """The least that a processor does: bytes in, bytes out."""
    began = time.thread_time()
    for data in encoded:
        decode_event(data)
    for event in results:
        encode_event(event)
    return len(encoded) / (time.thread_time() - began)


def games_among(models: int, players: int, count: int) -> tuple[Names, GameColumns]:
    """Games without ties in one environment, seats drawn at random."""
    rng = random.Random(0)
    names = Names()
    names.env("SimpleTak-v0-train")
    for number in range(models):
        names.model(f"model-{number}", None, None)
    seats, ranks = [], []
    for _ in range(count):
        seats += rng.sample(range(models), players)
        ranks += rng.sample(range(players), players)
    return names, GameColumns([0] * count, range(0, count * players + 1, players), seats, ranks)


def rate_all(games: tuple[Names, GameColumns]) -> float:
    """Our fold: games a second, rated in their environment and overall, every rating kept."""
    names, columns = games
    ratings = Ratings(names, TrueSkill())
    began = time.thread_time()
    ratings.apply(columns, RatingHistory())
    return len(columns.envs) / (time.thread_time() - began)


def rate_all_with_package(games: tuple[Names, GameColumns]) -> float:
    """The package's, on as many scopes."""
    names, columns = games
    environment = trueskill.TrueSkill(draw_probability=0.1, tau=0.0)
    began = time.thread_time()
    for _scope in range(2):
        beliefs = [environment.create_rating() for _ in names.models]
        for first, stop in itertools.pairwise(columns.starts):
            models = columns.models[first:stop]
            rated = environment.rate(
                [(beliefs[model],) for model in models], ranks=list(columns.ranks[first:stop])
            )
            for model, (belief,) in zip(models, rated, strict=True):
                beliefs[model] = belief
    return len(columns.envs) / (time.thread_time() - began)


def closed_form(updates: int) -> float:
    """Our two-player rating updates a second."""
    update = TrueSkill().pair("Env")
    began = time.thread_time()
    for _ in range(updates):
        update(25.0, 8.0, 30.0, 4.0, False)
    return updates / (time.thread_time() - began)


def factor_graph(updates: int) -> float:
    """The package's."""
    environment, a, b = (
        trueskill.TrueSkill(draw_probability=0.1),
        trueskill.Rating(25, 8),
        trueskill.Rating(30, 4),
    )
    began = time.thread_time()
    for _ in range(updates):
        trueskill.rate_1vs1(a, b, env=environment)
    return updates / (time.thread_time() - began)


def reward_processor() -> RewardProcessor:
    """The quick start's transformations."""
    return RewardProcessor(
        RUN,
        build_final([{"type": "RoleAdvantageByEnvFormatter"}]),
        build_step(
            [{"type": "RewardForFormat", "reward": 1.5}, {"type": "PenaltyForInvalidMove", "penalty": -1.0}]
        ),
    )


def rating_processor() -> RatingProcessor:
    """Default settings."""
    return RatingProcessor(RUN)


def main() -> None:
    """Measure and report."""
    options = parser(__doc__ or "").parse_args()
    rows: list[tuple[str, Callable[[], RewardProcessor | RatingProcessor], list[bytes]]] = [
        (f"rewards, {name}", reward_processor, trajectories(400, *shape)) for name, shape in SHAPES.items()
    ]
    rows.append(("ratings, 2 players", rating_processor, outcomes(2000, 2)))
    rows.append(("ratings, 4 players", rating_processor, outcomes(100, 4)))
    results: list[Comparison] = []
    for name, make, encoded in rows:
        processor = make()
        made = [output for data in encoded for output in processor.handle(decode_event(data))]
        least = partial(decode_and_encode, encoded, made)
        name = f"{name} ({sum(map(len, encoded)) / len(encoded) / 1024:.1f} KB)"
        for against, baseline, target in (
            ("decoding", partial(decode, encoded), 0.5),
            ("bytes in and out", least, None),
        ):
            results.append(
                compare(
                    f"{name}, {against}",
                    partial(process, make, encoded),
                    baseline,
                    unit="events/s",
                    rounds=options.rounds,
                    target=target,
                )
            )
    results.append(
        compare(
            "rating fold alone, 2 players",
            partial(rate_all, games_among(20, 2, 20_000)),
            partial(rate_all_with_package, games_among(20, 2, 400)),
            unit="games/s",
            rounds=options.rounds,
        )
    )
    results.append(
        compare(
            "two-player update",
            partial(closed_form, 5000),
            partial(factor_graph, 500),
            unit="updates/s",
            rounds=options.rounds,
        )
    )
    report("Processors against bare decoding", results, options.json)


if __name__ == "__main__":
    main()
