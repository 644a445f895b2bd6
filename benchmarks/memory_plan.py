"""The memory that ``plan`` foretells against the peaks of real processes, on a CPU.

Each measurement is a fresh process: it loads the model, then makes one update of a full micro-batch, or
decodes as many of the longest turns as the configuration has in flight; its peak is that of its resident
memory (``VmHWM``). Give a directory with --model for a model of your own.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import machine, parser
from unstable_stream.inference.model_shape import read_shape
from unstable_stream.launch.memory import foretell
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.placement import Machine, place
from unstable_stream.tiny_player import tiny_player_path

_LENGTH, _COMPLETION, _ROWS = 64, 4, 16
_CASES = (
    {},
    {"learner": {"activation_checkpointing": True}},
    {"learner": {"dtype": "bfloat16"}, "engine": {"dtype": "bfloat16"}},
    {"learner": {"parameters": "all"}},
    {"lora": {"last_layers": 2}},
)


def _config(model: str, changes: dict[str, dict[str, object]]) -> RunConfig:
    sections: dict[str, dict[str, object]] = {
        "learner": {"mini_batch_size": _ROWS, "batch_size": _ROWS, "dtype": "float32"},
        "engine": {"type": "transformers", "max_model_len": _LENGTH, "dtype": "float32"},
        "collector": {"num_workers": _ROWS, "num_eval_workers": 0},
        "sampling": {"max_tokens": _COMPLETION},
        "lora": {},
    }
    merged = {name: section | changes.get(name, {}) for name, section in sections.items()}
    envs = [{"env_id": "TicTacToe-v0-train"}]
    return parse_config({"model": model, "backend": "inline", "train_envs": envs, **merged})


def _build_model(path: Path) -> None:
    """Save a random Qwen3 of 17 million parameters."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=8192,
        hidden_size=384,
        intermediate_size=1152,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(path)


def _peak_bytes(process: str, config: RunConfig) -> int:
    """In a fresh process: do the work that takes most, and return the peak."""
    rng = np.random.default_rng(0)
    vocabulary = read_shape(config.model).vocabulary
    prompts = rng.integers(0, vocabulary, (_ROWS, _LENGTH - _COMPLETION)).astype(np.int32)
    if process == "learner":
        from unstable_stream.algorithms import Reinforce, TokenBatch, TrainingSample
        from unstable_stream.learners import StandardLearner

        with tempfile.TemporaryDirectory() as directory:
            learner = StandardLearner[TrainingSample, TokenBatch](
                config.model,
                algorithm=Reinforce(),
                batch_size=_ROWS,
                mini_batch_size=_ROWS,
                learning_rate=1e-4,
                max_generation_len=_COMPLETION,
                parameters=config.learner.parameters,
                lora_cfg=config.lora.model_dump(),
                activation_checkpointing=config.learner.activation_checkpointing,
                dtype=config.learner.dtype,
                ckpt_root=directory,
                device="cpu",
                num_threads=1,
            )
            behaviour = np.full(_COMPLETION, -1.0, dtype=np.float32)
            samples = [
                TrainingSample(str(row), prompt, prompt[:_COMPLETION], behaviour, float(row % 2) - 0.5)
                for row, prompt in enumerate(prompts)
            ]
            for update in (1, 2):  # the moments are there from the second on
                learner.update(samples, update)
            learner.save()
    else:
        asyncio.run(_decode(config, prompts.tolist()))
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


async def _decode(config: RunConfig, prompts: list[list[int]]) -> None:
    from unstable_stream.inference.engine import GenerationRequest, SamplingSettings
    from unstable_stream.inference.transformers.engine import TransformersEngine

    engine = TransformersEngine(config.model, device="cpu", num_threads=1, dtype=config.engine.dtype)
    settings = SamplingSettings(max_tokens=_COMPLETION)
    await asyncio.gather(*(engine.generate(GenerationRequest(prompt, settings)) for prompt in prompts))
    await engine.close()


def _compare(model: str, name: str, case: int) -> list[dict[str, object]]:
    config = _config(model, _CASES[case])
    needs = foretell(config, read_shape(model), place(config, [Machine()]))
    rows = []
    for need in needs:
        if need.process == "engine 0" and "engine" not in _CASES[case] and case:
            continue  # the same as before
        command = [sys.executable, "-m", "benchmarks.memory_plan", "--case", str(case)]
        command += ["--process", need.process, "--model", model]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peak = int(done.stdout.splitlines()[-1])
        changed = [_CASES[case].get(section, {}).items() for section in ("learner", "lora")]
        what = "; ".join(f"{key} = {value}" for keys in changed for key, value in keys)
        rows.append(
            {
                "model": name,
                "process": need.process,
                "settings": what if need.process == "learner" else str(config.engine.dtype),
                "foretold_mib": round(need.peak / 2**20),
                "measured_mib": round(peak / 2**20),
                "error": round(need.peak / peak - 1, 3),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Compare all cases for the tiny player, a random model, and one of --model."""
    arguments = parser("foretold against measured memory")
    arguments.add_argument("--model", default=None, help="directory of a model, beside the built-in ones")
    arguments.add_argument("--process", default=None, help="measure this process here (internal)")
    arguments.add_argument("--case", type=int, default=0, help="number of the settings (internal)")
    options = arguments.parse_args()
    if options.process is not None:
        print(_peak_bytes(options.process, _config(options.model, _CASES[options.case])))
        return
    with tempfile.TemporaryDirectory() as directory:
        _build_model(Path(directory))
        models = {"tiny player": str(tiny_player_path()), "random Qwen3, 17M": directory}
        if options.model is not None:
            models[Path(options.model).name] = options.model
        rows = [
            row
            for name, model in models.items()
            for case in range(len(_CASES))
            for row in _compare(model, name, case)
        ]
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
