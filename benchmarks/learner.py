"""The learner against a straightforward training loop: trained tokens per second and peak memory.

The straightforward loop cuts the batch in order into micro-batches, pads all of them to the batch's
longest sample, lets the model compute logits for every position, and masks. Loss, LoRA and optimizer are
the same, and so is the gradient. ``--against compiled`` compares with our own learner whose decoder layers
go through ``torch.compile``, ``--against peft`` with PEFT's own adapter layers in it. Shapes: the tiny player
with its short turns; a small model whose output head is a quarter of it, as in a 1.7B Qwen3; 17 million
parameters; and the size of SmolLM2-135M. Every measurement is a fresh process with one thread, so that one
side's memory does not hide in the other's. Time is CPU time.

After the table it says how much at most there is to save in these batches: their padding, and the output
head where nothing is trained (:func:`at_most`). ``--overhead`` measures what the way to cut a batch into
micro-batches rests on.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import peft
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in the field
import transformers

from benchmarks.harness import Comparison, compare, parser, report
from benchmarks.peers.batch import RANK, SHAPES, Shape
from benchmarks.peers.models import write_model
from unstable_stream.algorithms import Reinforce, TrainingSample
from unstable_stream.algorithms.learners.settings import LearnerSettings
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.algorithms.settings import ALL_PROJECTIONS, LoraSettings

_SHAPES = {
    "quickstart": SHAPES["tiny"],
    "mixed": Shape("qwen3", 4, 256, 512, 4, 2, 4096, False, 24, (8,), True),
    "17M": SHAPES["17M"],
    "smollm2": SHAPES["smollm2"],
}
_ROWS = {"quickstart": 256, "mixed": 8, "17M": 4, "smollm2": 2}
"""Samples of a micro-batch."""


def _batch(name: str) -> list[TrainingSample]:
    vocabulary, count = _SHAPES[name].vocabulary, _SHAPES[name].samples
    rng = np.random.default_rng(0)
    samples = []
    for index in range(count):
        prompt, completion = 20, 2
        if _SHAPES[name].mixed_lengths:  # most turns are short, a few are several times as long
            prompt = int(np.clip(rng.lognormal(5.0, 0.5), 30, 600))
            completion = int(np.clip(rng.lognormal(4.3, 0.9), 5, 600))
        samples.append(_sample(index, prompt, completion, vocabulary, rng))
    return samples


def _sample(
    index: int, prompt: int, completion: int, vocabulary: int, rng: np.random.Generator
) -> TrainingSample:
    """Return a sample of so many random tokens."""

    def tokens(length: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return rng.integers(0, vocabulary, length).astype(np.int32)

    behaviour = np.full(completion, -np.log(vocabulary), dtype=np.float32)
    return TrainingSample(str(index), tokens(prompt), tokens(completion), behaviour, float(rng.normal()))


def _learner(model_path: str, samples: list[TrainingSample], rows: int) -> StandardLearner:
    """Return ours, for batches of such samples and micro-batches of so many rows."""
    return StandardLearner(
        model_path,
        LearnerSettings(
            batch_size=len(samples),
            mini_batch_size=rows,
            learning_rate=1e-4,
            max_generation_len=max(len(sample.completion_token_ids) for sample in samples),
            lora_cfg=LoraSettings(lora_rank=RANK, lora_alpha=2 * RANK),
        ),
        algorithm=Reinforce(),
        ckpt_root=Path(model_path) / "checkpoints",
        device="cpu",
    )


def at_most(name: str) -> tuple[float, float]:
    """Return how many times as fast as the padded loop a shape's batch could be trained.

    First without any padding; then also with the output head for trained tokens only. It counts products with
    the model's matrices, of which each token needs as many as it has weights, in each pass over it.
    """
    shape, samples = _SHAPES[name], _batch(name)
    trained = sum(len(sample.completion_token_ids) for sample in samples)
    lengths = [len(sample.prompt_token_ids) + len(sample.completion_token_ids) for sample in samples]
    padded, real = len(lengths) * max(lengths), sum(lengths)
    attention = 2 * shape.hidden**2 * (1 + shape.key_value_heads / shape.heads)
    decoder = shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
    head = shape.hidden * shape.vocabulary
    return padded / real, padded * (decoder + head) / (real * decoder + trained * head)


class StraightforwardLoop:
    """What one writes first."""

    def __init__(self, model_path: str, rows: int, longest_completion: int) -> None:
        base = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        lora = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=list(ALL_PROJECTIONS))
        self.model = peft.get_peft_model(base, lora)
        self.rows = rows
        self.longest_completion = longest_completion
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4)

    def update(self, samples: list[TrainingSample]) -> float:
        width = max(len(s.prompt_token_ids) + len(s.completion_token_ids) for s in samples)
        self.optimizer.zero_grad()
        total = 0.0
        for start in range(0, len(samples), self.rows):
            part = samples[start : start + self.rows]
            tokens = torch.zeros(len(part), width, dtype=torch.long)
            attention = torch.zeros(len(part), width, dtype=torch.long)
            trained = torch.zeros(len(part), width)
            behaviour = torch.zeros(len(part), width)
            for row, sample in enumerate(part):
                prompt, completion = len(sample.prompt_token_ids), len(sample.completion_token_ids)
                text = np.concatenate([sample.prompt_token_ids, sample.completion_token_ids])
                tokens[row, : len(text)] = torch.from_numpy(text)
                attention[row, : len(text)] = 1
                trained[row, prompt : prompt + completion] = 1
                behaviour[row, prompt : prompt + completion] = torch.tensor(sample.logprobs)
            logits = self.model(input_ids=tokens, attention_mask=attention).logits[:, :-1]
            logprobs = F.log_softmax(logits, dim=-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
            ratio = (logprobs.detach() - behaviour[:, 1:]).exp().clamp(max=2.0)
            advantages = torch.tensor([sample.advantage for sample in part])[:, None]
            per_token = -ratio * advantages * logprobs * trained[:, 1:]
            loss = per_token.sum() / self.longest_completion / len(samples)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return total


def _measure(side: str, shape: str, model_path: str, updates: int) -> dict[str, float]:
    """In a fresh process: CPU seconds per update and how far memory grew beyond the loaded model."""
    torch.set_num_threads(1)
    samples = _batch(shape)
    rows = _ROWS[shape]
    loop = ours = None
    if side in ("ours", "compiled", "peft"):
        if side == "peft":
            with mock.patch("unstable_stream.algorithms.learners.lora.fuse_adapters"):
                ours = _learner(model_path, samples, rows)
        else:
            ours = _learner(model_path, samples, rows)
        if side == "compiled":
            for layer in ours.policy.model.get_decoder().layers:
                layer.compile(dynamic=True)
    else:
        longest = max(len(sample.completion_token_ids) for sample in samples)
        loop = StraightforwardLoop(model_path, rows, longest)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak (proc(5))
    before = _status_mb("VmHWM")
    seconds = []
    loss = 0.0
    for number in range(1, updates + 2):
        start = time.process_time()
        value = ours.update(samples, number).loss if ours else loop.update(samples) if loop else 0.0
        if number == 1:
            loss = value
        else:  # the first is the warm-up
            seconds.append(time.process_time() - start)
    tokens = sum(len(sample.completion_token_ids) for sample in samples)
    return {
        "tokens_per_s": tokens / float(np.median(seconds)),
        "seconds": float(np.median(seconds)),
        "peak_mb": _status_mb("VmHWM") - before,
        "first_loss": loss,
    }


def _overhead(name: str, rounds: int) -> str:
    """Say how many tokens' time a micro-batch takes beside its own: 2,048 tokens cut in 16 and in two."""
    rng = np.random.default_rng(0)
    samples = [_sample(index, 24, 8, _SHAPES[name].vocabulary, rng) for index in range(64)]
    with tempfile.TemporaryDirectory() as directory:
        write_model(_SHAPES[name], Path(directory))
        learners = {rows: _learner(f"{directory}/model", samples, rows) for rows in (4, 32)}
        seconds: dict[int, list[float]] = {rows: [] for rows in learners}
        for number in range(1, rounds + 2):
            for rows, learner in learners.items():
                start = time.process_time()
                learner.update(samples, number)
                seconds[rows].append(time.process_time() - start)
    many, two = (float(np.median(seconds[rows][1:])) for rows in (4, 32))
    tokens = (many - two) / (16 - 2) / (two / 2048)
    return f"{name}, one thread: a micro-batch takes {tokens:.0f} tokens' time beside its own"


def _status_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def _in_fresh_process(side: str, shape: str, model_path: str, updates: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.learner", "--side", side, "--shape", shape]
    command += ["--model", model_path, "--updates", str(updates)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _compare_shape(shape: str, against: str, rounds: int, updates: int) -> list[Comparison]:
    target = 2.0 if against == "loop" else None
    with tempfile.TemporaryDirectory() as directory:
        write_model(_SHAPES[shape], Path(directory))
        peaks: dict[str, list[float]] = {"ours": [], against: []}
        losses: dict[str, float] = {}

        def rate(side: str) -> float:
            result = _in_fresh_process(side, shape, f"{directory}/model", updates)
            peaks[side].append(102_400 / result["peak_mb"])
            losses[side] = result["first_loss"]
            print(f"{shape}, {side}: {result}", file=sys.stderr)
            return result["tokens_per_s"]

        speed = compare(
            f"{shape}: speed",
            lambda: rate("ours"),
            lambda: rate(against),
            unit="trained tokens per CPU second",
            rounds=rounds,
            warmup=0,
            target=target,
        )
    if abs(losses["ours"] - losses[against]) > 1e-3 * abs(losses[against]):
        raise SystemExit(f"the two sides computed different losses: {losses}")
    memory = Comparison(
        f"{shape}: memory", "updates in 100 GB", tuple(peaks["ours"]), tuple(peaks[against]), target
    )
    return [speed, memory]


def main() -> None:
    """Compare both sides on all shapes; with ``--side``, measure one side here."""
    arguments = parser("the learner against a straightforward padded loop")
    arguments.add_argument("--updates", type=int, default=3, help="measured updates per process")
    arguments.add_argument("--shape", choices=sorted(_SHAPES), default=None, help="only this shape")
    arguments.add_argument(
        "--against",
        choices=["loop", "compiled", "peft"],
        default="loop",
        help="the padded loop, or ours: with decoder layers through torch.compile, or PEFT's adapter layers",
    )
    arguments.add_argument(
        "--side", choices=["ours", "loop", "compiled", "peft"], default=None, help=argparse.SUPPRESS
    )
    arguments.add_argument("--model", default=None, help=argparse.SUPPRESS)
    arguments.add_argument(
        "--overhead", action="store_true", help="only how much a micro-batch costs beside its tokens"
    )
    options = arguments.parse_args()
    if options.side is not None:
        print(json.dumps(_measure(options.side, options.shape, options.model, options.updates)))
        return
    shapes = [options.shape] if options.shape else list(_SHAPES)
    if options.overhead:
        torch.set_num_threads(1)
        for shape in shapes:
            print(_overhead(shape, options.rounds), flush=True)
        return
    results = [
        one
        for shape in shapes
        for one in _compare_shape(shape, options.against, options.rounds, options.updates)
    ]
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
    }
    report("learner, one thread", results, options.json, versions=versions)
    if options.against == "loop":
        for shape in shapes:
            padding, both = at_most(shape)
            print(
                f"{shape}: leaving out padding allows at most {padding:.2f} times the speed, also the output "
                f"head where nothing is trained {both:.2f} times"
            )


if __name__ == "__main__":
    main()
