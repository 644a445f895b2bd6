"""The memory that ``plan`` foretells against the peaks of real processes, on a CPU.

Each measurement is a fresh process: it loads the model, then makes one update of a full micro-batch, or
decodes as many of the longest turns as the configuration has in flight; its peak is that of its resident
memory (``VmHWM``), and vLLM's that of both its processes. vLLM is left out where it is not installed. Give a
directory with --model for a model of your own, with --only the beginning of the names of the processes to
measure, and with --case the settings. --large takes up to 13 GiB, with --rows 8 and LoRA 6.
"""

import asyncio
import importlib.util
import json
import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, TypedDict

import numpy as np
import psutil

from benchmarks.harness import machine, parser
from unstable_stream.inference.model_config import read_shape
from unstable_stream.inference.tiny_player import tiny_player_path
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.placement import Machine, Share, place
from unstable_stream.services.launch.memory import foretell

_LENGTH, _COMPLETION = 64, 4
_ROWS: Final = 16
CASES: Final[dict[str, dict[str, dict[str, object]]]] = {
    "as it is": {},
    "recomputed": {"learner": {"activation_checkpointing": True}},
    "bfloat16": {"learner": {"dtype": "bfloat16"}, "engine": {"dtype": "bfloat16"}},
    "all parameters": {"learner": {"parameters": "all"}},
    "last layers": {"lora": {"last_layers": 2}},
    "vLLM": {"engine": {"type": "vllm", "max_loras": 5}},
    "vLLM, bfloat16": {"engine": {"type": "vllm", "dtype": "bfloat16", "kv_cache_gb": 0.25}},
}
"""By name: what of the settings below is changed."""


_SMALL: Final = {
    "vocab_size": 8192,
    "hidden_size": 384,
    "intermediate_size": 1152,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
_LARGE: Final = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
"""That of Qwen3-0.6B."""


class Compared(TypedDict):
    """One process."""

    model: str
    process: str
    settings: str
    foretold_mib: int
    measured_mib: int
    error: float
    """Relative; negative: it takes more than is foretold."""


def _config(model: str, changes: dict[str, dict[str, object]], rows: int = _ROWS) -> RunConfig:
    sections: dict[str, dict[str, object]] = {
        "learner": {"mini_batch_size": rows, "batch_size": rows, "dtype": "float32"},
        # No adapter is loaded; vLLM keeps room for them from the start.
        "engine": {"type": "transformers", "max_model_len": _LENGTH, "dtype": "float32", "max_loras": 1},
        "collector": {"num_workers": rows, "num_eval_workers": 0},
        "sampling": {"max_tokens": _COMPLETION},
        "lora": {},
    }
    merged = {name: section | changes.get(name, {}) for name, section in sections.items()}
    envs = [{"env_id": "TicTacToe-v0-train"}]
    return parse_config({"model": model, "backend": "inline", "train_envs": envs, **merged})


def _build_model(path: Path, *, large: bool = False) -> None:
    """Save a random Qwen3: of 17 million parameters in float32, or of 596 million in bfloat16."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if large else torch.float32)
    shape = _LARGE if large else _SMALL
    config = transformers.Qwen3Config(**shape, tie_word_embeddings=True, max_position_embeddings=1024)
    transformers.Qwen3ForCausalLM(config).save_pretrained(path)


def _peak_bytes(process: str, config: RunConfig) -> int:
    """In a fresh process: do the work that takes most, and return the peak."""
    rng = np.random.default_rng(0)
    vocabulary = read_shape(config.model).vocabulary
    rows = config.learner.batch_size
    prompts = rng.integers(0, vocabulary, (rows, _LENGTH - _COMPLETION)).astype(np.int32)
    if process == "learner":
        from unstable_stream.algorithms import Reinforce, TrainingSample
        from unstable_stream.algorithms.learners.settings import LearnerSettings
        from unstable_stream.algorithms.learners.standard_learner import StandardLearner

        with tempfile.TemporaryDirectory() as directory:
            learner = StandardLearner(
                config.model,
                LearnerSettings(
                    batch_size=rows,
                    mini_batch_size=rows,
                    learning_rate=1e-4,
                    max_generation_len=_COMPLETION,
                    parameters=config.learner.parameters,
                    lora_cfg=config.lora,
                    activation_checkpointing=config.learner.activation_checkpointing,
                    num_threads=1,
                ),
                algorithm=Reinforce(),
                dtype=config.learner.dtype,
                ckpt_root=directory,
                device="cpu",
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
        return asyncio.run(_decode(config, prompts.tolist()))
    return _peak_of(psutil.Process().pid)


async def _decode(config: RunConfig, prompts: list[list[int]]) -> int:
    from unstable_stream.inference.engine import GenerationRequest, SamplingSettings
    from unstable_stream.services.workers.engine import build_engine

    engine = build_engine(config, config.model, Share("engine 0"))
    settings = SamplingSettings(max_tokens=_COMPLETION)
    await asyncio.gather(*(engine.generate(GenerationRequest(prompt, settings)) for prompt in prompts))
    this = psutil.Process()
    peak = sum(_peak_of(process.pid) for process in (this, *this.children(recursive=True)))
    await engine.close()
    return peak


def _peak_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def compare(model: str, name: str, case: str, only: str = "", rows: int = _ROWS) -> list[Compared]:
    """Measure the processes of one case whose names begin with ``only``, beside what is foretold of them."""
    changes = CASES[case]
    config = _config(model, changes, rows)
    needs = foretell(config, read_shape(model), place(config, [Machine()]))
    found: list[Compared] = []
    for need in needs:
        sections = ("engine",) if need.process == "engine 0" else ("learner", "lora")
        if changes and not any(section in changes for section in sections):
            continue  # the same as before
        if not need.process.startswith(only):
            continue
        command = [sys.executable, "-m", "benchmarks.memory_plan", "--case", case]
        command += ["--process", need.process, "--model", model, "--rows", str(rows)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        peak = int(done.stdout.splitlines()[-1])
        changed = [changes.get(section, {}).items() for section in sections]
        found.append(
            Compared(
                model=name,
                process=need.process,
                settings="; ".join(f"{key} = {value}" for keys in changed for key, value in keys),
                foretold_mib=round(need.peak / 2**20),
                measured_mib=round(peak / 2**20),
                error=round(need.peak / peak - 1, 3),
            )
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    """Compare all cases for the tiny player, a random model, and one of --model."""
    arguments = parser("foretold against measured memory")
    arguments.add_argument("--model", default=None, help="directory of a model, beside the built-in ones")
    arguments.add_argument("--large", action="store_true", help="only a random model like Qwen3-0.6B")
    arguments.add_argument("--rows", type=int, default=_ROWS, help="rows that are trained or played together")
    arguments.add_argument("--only", default="", help="processes to measure: learner or engine")
    arguments.add_argument("--process", default=None, help="measure this process here (internal)")
    arguments.add_argument("--case", default="", choices=["", *CASES], help="only these settings")
    options = arguments.parse_args()
    if options.process is not None:
        print(_peak_bytes(options.process, _config(options.model, CASES[options.case], options.rows)))
        return
    with_vllm = importlib.util.find_spec("vllm") is not None
    with tempfile.TemporaryDirectory() as directory:
        # In a process of its own: what is measured may need the memory.
        built = multiprocessing.get_context("spawn").Process(
            target=_build_model, args=(Path(directory),), kwargs={"large": options.large}
        )
        built.start()
        built.join()
        models = {"tiny player": str(tiny_player_path()), "random Qwen3, 17M": directory}
        if options.large:
            models = {"random Qwen3, 0.6B": directory}
        if options.model is not None:
            models[Path(options.model).name] = options.model
        rows = [
            row
            for name, model in models.items()
            for case, changes in CASES.items()
            if options.case in ("", case)
            if with_vllm or changes.get("engine", {}).get("type") != "vllm"
            for row in compare(model, name, case, options.only, options.rows)
        ]
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
