"""Training samples for the tiny model (40 token ids)."""

import numpy as np

from unstable_stream.algorithms import TrainingSample

VOCABULARY = 40


def make_samples(
    count: int, *, seed: int = 0, longest_prompt: int = 20, longest_completion: int = 8
) -> list[TrainingSample]:
    """Random samples of mixed lengths; both long prompts with short completions and the reverse occur."""
    rng = np.random.default_rng(seed)
    return [
        make_sample(
            f"s{index}",
            int(rng.integers(1, longest_prompt + 1)),
            int(rng.integers(1, longest_completion + 1)),
            advantage=float(rng.normal()),
            temperature=float(rng.choice([0.6, 1.0])),
            seed=1000 * seed + index,
        )
        for index in range(count)
    ]


def make_sample(
    step_id: str,
    prompt: int,
    completion: int,
    *,
    advantage: float = 1.0,
    temperature: float = 1.0,
    truncated: bool = False,
    seed: int = 0,
) -> TrainingSample:
    """One sample of given lengths with random tokens and behaviour log-probabilities."""
    rng = np.random.default_rng(seed)
    return TrainingSample(
        step_id=step_id,
        prompt_token_ids=rng.integers(0, VOCABULARY, prompt).astype(np.int32),
        completion_token_ids=rng.integers(0, VOCABULARY, completion).astype(np.int32),
        logprobs=rng.uniform(-6.0, -0.5, completion).astype(np.float32),
        advantage=advantage,
        temperature=temperature,
        truncated=truncated,
    )
