"""Rollout against the engine alone: completion tokens a second, on the same prompts, in the same engine.

Ours is the path of a run: a rollout worker plays games in an actor of Ray, its requests travel to the actor
of the engine, and finished games are appended to the log. The baseline gives the prompts of those very games
to the same engine object in its own process, with nothing around it: no games, templates, tokenizer, Ray or
log. A game's next prompt is asked when the one before is answered, with as many games under way as on our
side, and sampled with the same settings. vLLM forgets its prefix cache before each side, or the second one
would find the first one's prompts there.

Both are compared by the clock, and by the CPU time of all processes, Ray's own included: that is the share on
a machine without a free core, and other work on the machine changes it little.

``python -m benchmarks.rollout_share`` takes the tiny player, ``--model DIR --template chat`` another model.
"""

import asyncio
import itertools
import os
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray

from benchmarks.harness import Comparison, compare, parser, report
from benchmarks.step_cost import MARK, by_process
from unstable_stream.events import (
    GameStarted,
    Seat,
    Trajectory,
    checkpoint_uid,
    decode_event,
    event_id,
    game_id,
    unpack_tokens,
)
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.inference.engine import GenerationRequest, SamplingSettings
from unstable_stream.inference.vllm.engine import VllmEngine
from unstable_stream.log.open import open_log_at
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.placement import place
from unstable_stream.services.launch.plan import this_machine
from unstable_stream.services.launch.ray.actors import RayRolloutWorker, RolloutActor
from unstable_stream.services.launch.ray.cluster import start_local, stop_local
from unstable_stream.services.launch.ray.engine import EngineActor, RemoteEngine
from unstable_stream.services.launch.ray.engine_pool import RayEngine

Chain = list[list[int]]
"""The prompts of one game in the order of its moves."""

_RUN = "rollout-share"
_POLICY = checkpoint_uid(0)


class MeasuredEngine(EngineActor):
    """The engine's actor, which can also ask its engine itself."""

    async def replay(self, chains: Sequence[Chain], in_flight: int, max_tokens: int) -> tuple[int, float]:
        """Return the completion tokens for the games' prompts, as many games under way, and the seconds."""
        slots = asyncio.Semaphore(in_flight)
        sampling = SamplingSettings(max_tokens)

        async def play(chain: Chain) -> int:
            async with slots:
                answers = [
                    await self._engine.generate(GenerationRequest(prompt, sampling)) for prompt in chain
                ]
                return sum(len(answer.token_ids) for answer in answers)

        began = time.perf_counter()
        tokens = await asyncio.gather(*(play(chain) for chain in chains))
        return sum(tokens), time.perf_counter() - began

    async def forget_prompts(self) -> None:
        """Empty vLLM's prefix cache; the transformers engine has none."""
        engine = getattr(self._engine, "engine", None)
        if isinstance(engine, VllmEngine):
            await engine._vllm.llm.reset_prefix_cache()


class Bench:
    """One engine and one rollout worker in their actors, and the log between."""

    def __init__(self, config: RunConfig, games: int, log: EventLog, data: DataDir) -> None:
        self._config = config
        self._games = games
        self._log = log
        self._next = itertools.count()
        self._read: dict[Any, int] = {}
        self._chains: list[Chain] = []
        self.core_rates: dict[str, list[float]] = {"play": [], "replay": []}
        """Completion tokens per second of CPU time, by side."""
        self.turns = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        """Of the games of the last round."""
        model = resolve_model(config.model)
        outputs = [data.root / f"{part}.log" for part in ("engine-0", "rollout-0")]
        placement = place(config, [this_machine()])
        share = placement.engines[0]
        engines = ray.remote(MeasuredEngine).options(
            num_cpus=0, num_gpus=share.num_gpus, max_concurrency=4096
        )
        run = RunContext(_RUN, config, data)
        self._engine = engines.remote(run, outputs[0], model, share)
        workers = ray.remote(RolloutActor).options(num_cpus=0, max_concurrency=1024)
        worker = workers.remote(run, outputs[1], model, RemoteEngine({0: self._engine}), {})
        self._worker = RayRolloutWorker(lambda: worker, 0, _RUN)

    async def ready(self) -> None:
        """Return when the engine has loaded its model."""
        await RayEngine(0, self._engine).stats()

    async def play(self) -> float:
        """Play games as a run does; return completion tokens per second, and keep their prompts."""
        slots = asyncio.Semaphore(self._config.collector.num_workers)

        async def one(game: GameStarted) -> None:
            async with slots:
                await self._worker.play([game], {})

        games = [self._game(next(self._next)) for _ in range(self._games)]
        await self._engine.forget_prompts.remote()
        spent, began = _core_seconds(), time.perf_counter()
        await asyncio.gather(*(one(game) for game in games))
        seconds, spent = time.perf_counter() - began, _core_seconds() - spent
        self._chains = await self._played({game.game_id for game in games})
        self.core_rates["play"].append(self.completion_tokens / spent)
        return self.completion_tokens / seconds

    async def replay(self) -> float:
        """Ask the engine for the same in its own process; return completion tokens per second."""
        await self._engine.forget_prompts.remote()
        spent = _core_seconds()
        tokens, seconds = await self._engine.replay.remote(
            self._chains, self._config.collector.num_workers, self._config.sampling.max_tokens
        )
        self.core_rates["replay"].append(tokens / (_core_seconds() - spent))
        return float(tokens / seconds)

    async def _played(self, games: set[str]) -> list[Chain]:
        moves: dict[str, list[tuple[int, list[int], int]]] = {game: [] for game in games}
        async for record in read_to_end(self._log, (Trajectory.TOPIC,)):
            event = decode_event(record.value)
            if isinstance(event, Trajectory) and event.game_id in games:
                moves[event.game_id] += [
                    (
                        turn.game_turn,
                        unpack_tokens(turn.prompt_token_ids).tolist(),
                        len(unpack_tokens(turn.completion_token_ids)),
                    )
                    for turn in event.turns
                ]
        played = [turn for game in moves.values() for turn in game]
        self.turns = len(played)
        self.prompt_tokens = sum(len(prompt) for _, prompt, _ in played)
        self.completion_tokens = sum(tokens for _, _, tokens in played)
        return [[prompt for _, prompt, _ in sorted(game)] for game in moves.values()]

    def _game(self, index: int) -> GameStarted:
        """Mirror self-play of the base model; every round plays the same seeds."""
        (env,) = self._config.train_envs
        ours = Seat(
            seat=0,
            model_uid=_POLICY,
            kind="checkpoint",
            policy_version=0,
            template=env.template,
            trained=True,
        )
        return GameStarted(
            event_id=event_id(_RUN, "game-started", "train", index),
            run_id=_RUN,
            occurred_at_ms=1,
            game_id=game_id(_RUN, "train", index),
            game_index=index,
            split="train",
            env_id=env.env_id,
            seed=index % self._games,
            seats=(ours, msgspec.structs.replace(ours, seat=1)),
        )


def main() -> None:
    """Measure both sides in turn and report the share."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--model", default="tiny-player", help="tiny-player, or a model's directory")
    arguments.add_argument(
        "--template", default="tictactoe-board", help="of the prompts; chat for a chat model"
    )
    arguments.add_argument("--engine", default="transformers", choices=("transformers", "vllm"))
    arguments.add_argument("--max-tokens", type=int, default=4, help="longest completion")
    arguments.add_argument("--games", type=int, default=512, help="games of each round")
    arguments.add_argument("--in-flight", type=int, default=128, help="games at once")
    options = arguments.parse_args()
    config = parse_config(
        {
            "model": options.model,
            "train_envs": [{"env_id": "TicTacToe-v0-train", "template": options.template}],
            "sampling": {"max_tokens": options.max_tokens},
            "engine": {"type": options.engine, "max_parallel_seq": options.in_flight},
            # A model that makes illegal moves plays on, so that a game is more than a prompt or two.
            "collector": {"num_workers": options.in_flight, "invalid_moves_allowed": 3},
        }
    )
    os.environ[MARK] = secrets.token_hex(8)
    start_local()
    try:
        with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
            data = DataDir(Path(directory))
            log = runner.run(_log(config, data))
            bench = Bench(config, options.games, log, data)
            runner.run(bench.ready())
            name = f"{Path(options.model).name}, {options.engine}"
            share = compare(
                name,
                lambda: runner.run(bench.play()),
                lambda: runner.run(bench.replay()),
                unit="tokens/s",
                rounds=options.rounds,
                target=0.95,
            )
            runner.run(log.close())
    finally:
        stop_local()
    play, replay = (tuple(rates[-options.rounds :]) for rates in bench.core_rates.values())
    cores = Comparison(f"{name}, CPU time", "tokens/core-s", play, replay, 0.95)
    prompt, completion = bench.prompt_tokens / bench.turns, bench.completion_tokens / bench.turns
    report(
        f"Rollout's share of the bare engine: {options.games} games, {options.in_flight} at once, "
        f"{bench.turns} turns of {prompt:.0f} prompt and {completion:.1f} completion tokens",
        [share, cores],
        options.json,
    )


def _core_seconds() -> float:
    """Return the CPU time of all processes of this benchmark so far."""
    return sum(by_process(os.environ[MARK]).values())


async def _log(config: RunConfig, data: DataDir) -> EventLog:
    log = open_log_at(config.log, data.log, config.synchronous)
    await log.create_topics(list(load_topics().values()))
    return log


if __name__ == "__main__":
    main()
