"""The step buffer against the obvious list: draw a batch and evict, at 100,000 pending steps.

The list draws with ``random.sample`` and removes what it drew by equality, as the ancestor did.
"""

import random
import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import compare, parser, report
from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.events import Step, event_id, pack_floats, pack_tokens


def _steps(count: int) -> list[Step]:
    prompt, completion, logprobs = pack_tokens(range(20)), pack_tokens([1, 2]), pack_floats([-1.0, -1.0])
    return [
        Step(
            event_id=event_id("run", "step", index),
            run_id="run",
            occurred_at_ms=0,
            trajectory_id="t",
            game_id="g",
            game_index=index // 5,
            env_id="env",
            seat=0,
            turn_index=index % 5,
            num_turns=5,
            model_uid="ckpt-000000",
            policy_version=0,
            prompt_token_ids=prompt,
            completion_token_ids=completion,
            logprobs=logprobs,
            raw_reward=1.0,
            final_reward=1.0,
            reward=1.0,
        )
        for index in range(count)
    ]


def _timed(work: Callable[[], int]) -> float:
    start = time.thread_time()
    done = work()
    return done / (time.thread_time() - start)


def main() -> None:
    """Measure drawing, evicting and, for its price, filling."""
    arguments = parser("step buffer against a list with removal by equality")
    arguments.add_argument("--pending", type=int, default=100_000)
    arguments.add_argument("--batch", type=int, default=384)
    options = arguments.parse_args()
    steps = _steps(options.pending + options.batch)
    pending, more = steps[: options.pending], steps[options.pending :]
    rng = random.Random(0)

    def buffer_draw() -> float:
        buffer = StepBuffer(options.pending)
        buffer.extend(pending)
        return _timed(lambda: len(buffer.get_batch(options.batch, 1).steps))

    def list_draw() -> float:
        held = list(pending)

        def work() -> int:
            batch = rng.sample(held, options.batch)
            for step in batch:
                held.remove(step)
            return len(batch)

        return _timed(work)

    def buffer_evict() -> float:
        buffer = StepBuffer(options.pending)
        buffer.extend(pending)

        def work() -> int:
            buffer.extend(more)
            buffer.available(1)  # settles the overflow
            return len(more)

        return _timed(work)

    def list_evict() -> float:
        held = list(pending)

        def work() -> int:
            held.extend(more)
            for step in rng.sample(held, len(held) - options.pending):
                held.remove(step)
            return len(more)

        return _timed(work)

    def buffer_fill() -> float:
        buffer = StepBuffer(options.pending)

        def work() -> int:
            for start in range(0, len(pending), 500):  # as the log hands them out
                buffer.extend(pending[start : start + 500])
            return len(pending)

        return _timed(work)

    def list_fill() -> float:
        held: list[Step] = []
        known: set[str] = set()

        def work() -> int:
            for step in pending:
                if step.event_id not in known:
                    known.add(step.event_id)
                    held.append(step)
            return len(held)

        return _timed(work)

    results = [
        compare("draw a batch", buffer_draw, list_draw, unit="steps/s", rounds=options.rounds),
        compare("evict what is too much", buffer_evict, list_evict, unit="steps/s", rounds=options.rounds),
        compare("fill, ids checked", buffer_fill, list_fill, unit="steps/s", rounds=options.rounds),
    ]
    title = f"step buffer, {options.pending:,} pending, batch {options.batch}"
    report(title, results, options.json, versions={"numpy": np.__version__})


if __name__ == "__main__":
    main()
