"""The transformers engine with many games at once, against asking one by one and against ``model.generate``.

The quickstart's shape: the shipped tiny player, 19-token boards, completions of at most 4 tokens, the base
model and three adapters in one batch. Every game asks again as soon as it has its answer, as games do.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import peft
import torch
import transformers

from benchmarks.harness import compare, parser, report
from tests.inference.tiny_model import build_adapter
from unstable_stream.inference.engine import Adapter, GenerationRequest, SamplingSettings
from unstable_stream.inference.tiny_player import tiny_player_path
from unstable_stream.inference.tokenizer import load_tokenizer
from unstable_stream.inference.transformers.engine import TransformersEngine

_MAX_TOKENS = 4


def _boards(count: int) -> list[list[int]]:
    """Random positions of SimpleTak, as its template words them."""
    tokenizer = load_tokenizer(tiny_player_path())
    rng = random.Random(0)
    prompts = []
    for _ in range(count):
        cells = [str(cell) if rng.random() < 0.5 else rng.choice("OX") for cell in range(16)]
        prompts.append(tokenizer.encode(" ".join(["SimpleTak", rng.choice("OX"), *cells, "move:"])))
    return prompts


def _engine_rate(
    prompts: list[list[int]], adapters: Sequence[Adapter | None], games: int
) -> Callable[[], float]:
    """Completions per second with so many games asking at once."""

    async def play(engine: TransformersEngine, game: int) -> None:
        for turn in range(game, len(prompts), games):
            adapter = adapters[game % len(adapters)]
            request = GenerationRequest(prompts[turn], SamplingSettings(_MAX_TOKENS), adapter, seed=turn)
            await engine.generate(request)

    async def measure() -> float:
        engine = TransformersEngine(str(tiny_player_path()), device="cpu", num_threads=1)
        await asyncio.gather(*(play(engine, game) for game in range(games)))  # warm-up: loads the adapters
        start = time.perf_counter()
        await asyncio.gather(*(play(engine, game) for game in range(games)))
        rate = len(prompts) / (time.perf_counter() - start)
        await engine.close()
        return rate

    return lambda: asyncio.run(measure())


def _generate_rate(prompts: list[list[int]], adapter: Adapter | None, batch: int) -> Callable[[], float]:
    """Completions per second of ``model.generate`` on fixed batches of one adapter, prompts equally long."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_player_path(), dtype=torch.float32)
    if adapter is not None:
        model = peft.PeftModel.from_pretrained(model, adapter.path)
    batches = [torch.tensor(prompts[at : at + batch]) for at in range(0, len(prompts), batch)]

    def measure() -> float:
        torch.set_num_threads(1)
        start = time.perf_counter()
        with torch.inference_mode():
            for ids in batches:
                model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    max_new_tokens=_MAX_TOKENS,
                )
        return len(prompts) / (time.perf_counter() - start)

    return measure


def main() -> None:
    """Measure many games at once against one after the other, and against transformers' own loop."""
    arguments = parser("batched generation on the CPU, one thread")
    arguments.add_argument("--games", type=int, default=128, help="games at once")
    arguments.add_argument("--turns", type=int, default=16, help="requests of each game")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    prompts = _boards(options.games * options.turns)
    few = prompts[: options.games]
    with tempfile.TemporaryDirectory() as root:
        names = [Path(root) / f"ckpt-{seed:06d}" for seed in range(3)]
        adapters = [build_adapter(tiny_player_path(), path, seed) for seed, path in enumerate(names)]
        mixed: list[Adapter | None] = [None, *adapters]
        many = _engine_rate(prompts, mixed, options.games)
        one_adapter = _engine_rate(prompts, adapters[:1], options.games)
        base = _engine_rate(prompts, [None], options.games)
        comparisons = [
            compare(name, ours, theirs, unit="completions/s", rounds=options.rounds)
            for name, ours, theirs in (
                ("4 policies at once / one by one", many, _engine_rate(few, mixed, 1)),
                ("4 policies at once / generate, one by one", many, _generate_rate(few, adapters[0], 1)),
                (
                    "1 adapter / PEFT generate, batched",
                    one_adapter,
                    _generate_rate(prompts, adapters[0], options.games),
                ),
                ("base model / generate, batched", base, _generate_rate(prompts, None, options.games)),
            )
        ]
    title = (
        f"{options.games} games at once, prompts of {len(prompts[0])} tokens, at most {_MAX_TOKENS} sampled"
    )
    report(
        title,
        comparisons,
        options.json,
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
    )


if __name__ == "__main__":
    main()
