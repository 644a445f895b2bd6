"""The engines: tokens a second beside the bare library's, peak memory, agreement with the learner."""

import asyncio
import os
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
import transformers

from benchmarks.gpu_check.foretold import foretold_gib
from benchmarks.gpu_check.job import (
    GIB,
    Job,
    Row,
    free,
    is_out_of_memory,
    peak_gib,
    random_prompts,
    reset_peak,
    seconds_of,
)
from benchmarks.gpu_check.learning import make_learner, ratios, trained_adapter, vocabulary_of
from benchmarks.harness import compare
from unstable_stream.errors import EngineError
from unstable_stream.inference.engine import Adapter, Completion, Engine, GenerationRequest, SamplingSettings
from unstable_stream.inference.transformers.engine import TransformersEngine

Prompts = list[list[int]]

_AGREEMENT_PROMPTS: Final = 16
_CONTROL: Final = "base model (control)"
_VLLM_MEMORY: Final = 0.4
"""Share of the GPU for each of the two vLLM engines that are measured in turn."""


def measure_transformers(job: Job) -> Iterator[Row]:
    """Yield one row a length: our engine and ``generate`` on the same prompts in turn, each as one batch."""
    dtype = torch.bfloat16 if job.on_gpu else torch.float32
    bare = transformers.AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype).to(job.device)
    bare_gib = sum(weight.nbytes for weight in bare.parameters()) / GIB
    with asyncio.Runner() as runner:
        engine = TransformersEngine(job.model, device=job.device, kv_cache_bytes=_cache_bytes(job.device))
        for length in job.lengths:
            prompts, tokens = _prompts(job, length), job.completion_tokens(length)
            row: Row = {"length": length, "requests": len(prompts), "completion_tokens": tokens}
            try:
                reset_peak(job.device)
                _complete(runner, engine, prompts, tokens)
                row["peak_gib"] = round(peak_gib(job.device) - bare_gib, 2)
                row["foretold_gib"] = foretold_gib(job, length)["engine 0"]
                row |= _compare(
                    job,
                    partial(_complete, runner, engine, prompts, tokens),
                    partial(_generate, bare, prompts, tokens),
                )
            except (torch.OutOfMemoryError, EngineError) as error:
                if not is_out_of_memory(error):
                    raise
                yield row | {"skipped": f"out of memory with {len(prompts)} requests of {length} tokens"}
                break
            yield row
        runner.run(engine.close())


def measure_vllm(job: Job) -> Iterator[Row]:
    """Yield one row a length: our vLLM engine and ``vllm.LLM.generate`` in turn; then its agreement."""
    from unstable_stream.inference.vllm.client import child_environment, set_defaults
    from unstable_stream.inference.vllm.engine import VllmEngine

    # Both sides compute in a process of their own.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    set_defaults(offline=True)
    import vllm
    from vllm.platforms import current_platform  # ``import vllm`` alone does not load it

    if bool(current_platform.is_cpu()) == job.on_gpu:
        yield {"skipped": f"the vLLM that is installed does not run on {job.device}"}
        return
    limits: dict[str, Any] = {
        "max_model_len": max(job.lengths),
        "gpu_memory_utilization": _VLLM_MEMORY,
    }
    engine = VllmEngine(job.model, max_parallel_seq=job.requests, **limits)
    with child_environment(on_cpu=not job.on_gpu, compiled=job.on_gpu):
        limits |= {} if job.on_gpu else {"kv_cache_memory_bytes": GIB}
        lora = {"enable_lora": True, "max_loras": 5, "max_lora_rank": 32}
        bare = vllm.LLM(job.model, max_num_seqs=job.requests, disable_log_stats=True, **limits, **lora)
    with asyncio.Runner() as runner:
        for length in job.lengths:
            prompts, tokens = _prompts(job, length), job.completion_tokens(length)
            yield {
                "length": length,
                "requests": len(prompts),
                "completion_tokens": tokens,
                **_compare(
                    job,
                    partial(_complete, runner, engine, prompts, tokens),
                    partial(_generate_with_vllm, bare, prompts, tokens),
                ),
            }
        del bare
        free()
        yield from _agreement(job, runner, engine)
        runner.run(engine.close())


def measure_agreement(job: Job) -> Iterator[Row]:
    """Yield the agreement of the transformers engine with the learner."""
    with asyncio.Runner() as runner:
        engine = TransformersEngine(job.model, device=job.device, kv_cache_bytes=_cache_bytes(job.device))
        yield from _agreement(job, runner, engine)
        runner.run(engine.close())


def _agreement(job: Job, runner: asyncio.Runner, engine: Engine) -> Iterator[Row]:
    """Yield the learner's probability over the engine's for the tokens of an adapter's completions.

    And, as a control that must be worse, for completions of the base model.
    """
    learner = make_learner(job, learning_rate=5e-3)
    adapter = trained_adapter(job, learner)
    length = min(job.lengths)
    prompts, tokens = _prompts(job, length)[:_AGREEMENT_PROMPTS], job.completion_tokens(length)
    for policy, given in (("adapter", adapter), (_CONTROL, None)):
        completions = runner.run(_complete_all(engine, prompts, tokens, given))
        yield {
            "length": length,
            "policy": policy,
            "tokens": sum(len(completion.token_ids) for completion in completions),
            **ratios(learner, adapter, prompts, completions),
        }


def _compare(job: Job, ours: Callable[[], int], bare: Callable[[], int]) -> Row:
    """Measure both sides in turn; each returns how many tokens it made."""

    def rate(generate: Callable[[], int]) -> Callable[[], float]:
        def measure() -> float:
            made: list[int] = []
            seconds = seconds_of(lambda: made.append(generate()), job.device)
            return made[0] / seconds

        return measure

    found = compare("", rate(ours), rate(bare), unit="tokens/s", rounds=job.rounds)
    low, high = found.spread
    return {
        "tokens_per_s": round(statistics.median(found.ours)),
        "bare_tokens_per_s": round(statistics.median(found.baseline)),
        "share_of_bare": round(found.ratio, 3),
        "lowest_to_highest": f"{low:.2f} … {high:.2f}",
    }


def _complete(runner: asyncio.Runner, engine: Engine, prompts: Prompts, max_tokens: int) -> int:
    completions = runner.run(_complete_all(engine, prompts, max_tokens, None))
    return sum(len(completion.token_ids) for completion in completions)


async def _complete_all(
    engine: Engine, prompts: Prompts, max_tokens: int, adapter: Adapter | None
) -> list[Completion]:
    settings = SamplingSettings(max_tokens=max_tokens)
    return await asyncio.gather(
        *(
            engine.generate(GenerationRequest(prompt, settings, adapter, seed=number))
            for number, prompt in enumerate(prompts)
        )
    )


def _generate(model: Any, prompts: Prompts, max_tokens: int) -> int:
    ids = torch.tensor(prompts, device=model.device)
    with torch.inference_mode():
        found = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=max_tokens,
        )
    made = found[:, ids.shape[1] :]
    ends = model.generation_config.eos_token_id
    if ends is None:
        return int(made.numel())
    ended = torch.isin(made, torch.tensor(ends, device=made.device)).int()
    return int((ended.cumsum(1) - ended == 0).sum())  # what follows a row's end is padding


def _generate_with_vllm(llm: Any, prompts: Prompts, max_tokens: int) -> int:
    import vllm

    parameters = vllm.SamplingParams(temperature=1.0, max_tokens=max_tokens, logprobs=0, detokenize=False)
    found = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], parameters, use_tqdm=False)
    return sum(len(one.outputs[0].token_ids) for one in found)


def _prompts(job: Job, length: int) -> Prompts:
    size = length - job.completion_tokens(length)
    return [p.tolist() for p in random_prompts(vocabulary_of(job.model), job.requests_of(length), size)]


def _cache_bytes(device: str) -> int:
    """Leave half of the free memory to what is measured beside the engine."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.startswith("cuda") else GIB
