"""The whole plan of a run, made before anything starts: who computes where, and with how much memory."""

import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from unstable_stream.errors import ConfigError
from unstable_stream.inference.model_config import ModelShape, read_shape
from unstable_stream.runs.config import EngineExtensionConfig, RunConfig, VllmEngineConfig
from unstable_stream.runs.placement import Machine, Placement, Share, place
from unstable_stream.services.launch.memory import GIB, Need, foretell, learner_gpu_bytes, longest_turn

_RESERVE: Final = 1.5 * GIB
"""Taken by vLLM besides weights and cache: context, CUDA graphs, activations of one step."""

_HIGH_RANK: Final = 32
_LARGE_BATCH: Final = 1024
"""Steps of an update. With more, adapters fall behind training of all parameters, at high ranks too, and for
reinforcement learning a rank of 1 has done as well: Schulman et al., "LoRA Without Regret", 2025."""
_MOST_OF_A_GPU: Final = 0.97
"""The driver keeps the rest."""
_SMALLER_IN_VLLM: Final = {"quantization", "cpu_offload_gb", "kv_cache_dtype"}
"""Arguments of vLLM with which a model takes less than is foretold."""


@dataclass(frozen=True)
class RunPlan:
    """The places of a run, and the memory that each process is expected to take."""

    placement: Placement
    needs: tuple[Need, ...]
    """Empty if the model's shape is not known."""
    warnings: tuple[str, ...]
    """Troubles that may come with the longest turns, with the key to change."""

    @property
    def lines(self) -> list[str]:
        """The lines that a run prints at its start: places, memory of all machines together, warnings."""
        several = len(self.placement.machines) > 1
        lines = self.placement.describe() if self.placement.uses_gpus or several else []
        if not lines:
            engines = len(self.placement.engines)
            lines = [f"learner and {'engine' if engines == 1 else f'{engines} engines'} on the CPU"]
        host = [need for need in self.needs if need.where == "host"]
        if host:
            start, peak = sum(need.at_start for need in host), sum(need.peak for need in host)
            free = self.placement.machines[0].memory_bytes
            there = "" if free is None or several else f", {_gib(free)} free"
            lines[-1] += f"; memory {_gib(start)} at the start, {_gib(peak)} at most{there}"
        return [*lines, *self.warnings]

    def table(self) -> str:
        """Return a table of processes as text: place, memory at the start and at most, the largest parts."""
        where = {share.service: self.placement.where(share) for share in self.placement.shares}
        rows = [("process", "place", "start", "peak", "of which")]
        for need in self.needs:
            largest = sorted(need.parts.items(), key=lambda part: -part[1])[:3]
            told = ", ".join(f"{name} {_gib(size)}" for name, size in largest if size)
            # Learners after the first are on the GPUs of its share.
            service = "learner" if need.process.startswith("learner ") else need.process
            place = where.get(service, "on the CPU")
            rows.append((need.process, place, _gib(need.at_start), _gib(need.peak), told))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]))
            for row in rows
        )


def plan_run(config: RunConfig, model_path: str, machines: Sequence[Machine]) -> RunPlan:
    """Plan a run of a model on machines; a model of unknown shape is planned without its memory.

    Raises:
        ConfigError: it cannot be placed, or does not even fit when it is loaded.
    """
    try:
        shape = read_shape(model_path)
    except ConfigError:
        return RunPlan(place(config, machines), (), ())
    return plan_shape(config, shape, machines)


def plan_shape(config: RunConfig, shape: ModelShape, machines: Sequence[Machine]) -> RunPlan:
    """Plan a run of a model of this shape; see :func:`plan_run`."""
    placement = place(config, machines, learner_bytes=learner_gpu_bytes(config, shape))
    engines = tuple(_with_cache(config, shape, placement, share) for share in placement.engines)
    placement = msgspec.structs.replace(placement, engines=engines)
    needs = foretell(config, shape, placement)
    warnings = [*_checked(config, placement, needs), *_checked_engines(config, shape, placement, needs)]
    return RunPlan(placement, tuple(needs), tuple(warnings))


def _with_cache(config: RunConfig, shape: ModelShape, placement: Placement, share: Share) -> Share:
    """Size the cache of a vLLM engine that shares its GPU.

    vLLM would measure what is left while it starts, and take for its own what its neighbours take or free
    meanwhile; an engine that starts anew beside a learner at work would fail or get another size.
    """
    engine = config.engine
    total = placement.machines[share.machine].gpu_bytes
    shared = 0 < share.num_gpus < 1
    if not isinstance(engine, VllmEngineConfig) or engine.kv_cache_gb or not shared or total is None:
        return share
    fraction = share.memory_fraction or 0.0
    left = fraction * total - 2 * shape.parameters - _RESERVE
    needed = 2 * shape.token_values * longest_turn(config, shape)
    if left < needed:
        raise ConfigError(
            f"{share.service} gets {_gib(fraction * total)} of a shared GPU, and the model with one turn of "
            f"{longest_turn(config, shape)} tokens needs {_gib(fraction * total - left + needed)}: set "
            "engine.max_model_len lower, engine.gpu_memory_utilization higher, or take a smaller model"
        )
    return msgspec.structs.replace(share, kv_cache_gb=round(left / GIB, 2))


def _checked(config: RunConfig, placement: Placement, needs: Sequence[Need]) -> list[str]:
    """Return warnings; raise what cannot be."""
    warnings = []
    rank, steps = config.lora.lora_rank, config.learner.batch_size
    if config.learner.parameters == "lora" and rank > _HIGH_RANK and steps >= _LARGE_BATCH:
        warnings.append(
            f"lora.lora_rank = {rank} with {steps:,} steps an update: large batches cost an adapter more "
            f"than all parameters, at any rank, and policy gradients need few: {_HIGH_RANK} or less is enough"
        )
    learner, share = needs[0], placement.learner
    total = placement.machines[share.machine].gpu_bytes
    if share.num_gpus > 0 and total is not None:
        room = int((share.memory_fraction or 1.0) * total)
        if learner.at_start > room:
            whole = config.learner.parameters == "all"
            what = "model, gradients and optimizer" if whole else "the model"
            fewer = 'learner.parameters = "lora", ' if whole else ""
            raise ConfigError(
                f"the learner needs {_gib(learner.at_start)} for {what} alone and gets {_gib(room)} of "
                f"its GPU: set {fewer}engine.gpu_memory_utilization lower, or take a smaller model"
            )
        if learner.peak > room:
            warnings.append(
                f"the learner may need {_gib(learner.peak)} of the {_gib(room)} it gets on its GPU if turns "
                f"are long: {_less(config)}"
            )
    free = placement.machines[0].memory_bytes
    host = [need for need in needs if need.where == "host"]
    if free is not None and len(placement.machines) == 1:
        start, peak = sum(need.at_start for need in host), sum(need.peak for need in host)
        if start > free:
            largest = max(host, key=lambda need: need.at_start)
            raise ConfigError(
                f"the run needs {_gib(start)} of memory when its models are loaded, {largest.process} alone "
                f"{_gib(largest.at_start)}, and {_gib(free)} are free: take a smaller model, or fewer of "
                "collector.num_actors and collector.num_rollout_workers"
            )
        if peak > free:
            warnings.append(
                f"it may need {_gib(peak)} of memory, and {_gib(free)} are free, if turns are long: "
                f"{_less(config)}"
            )
    return warnings


def _checked_engines(
    config: RunConfig, shape: ModelShape, placement: Placement, needs: Sequence[Need]
) -> list[str]:
    """Return warnings of engines on GPUs; raise if one cannot hold its model in its part of them.

    All engines have equal parts, so the first that does not fit speaks for all.
    """
    engine = config.engine
    if isinstance(engine, EngineExtensionConfig):
        return []
    by_process = {need.process: need for need in needs}
    for share in placement.engines:
        total, need = placement.machines[share.machine].gpu_bytes, by_process[share.service]
        if share.num_gpus == 0 or total is None:
            continue
        room = int((share.memory_fraction or 1.0) * total)
        if isinstance(engine, VllmEngineConfig):
            turn = 2 * shape.token_values * longest_turn(config, shape)
            least = need.at_start + turn // min(engine.tensor_parallel_size, shape.key_heads)
            what = f"for the model and one turn of {longest_turn(config, shape)} tokens"
            if _SMALLER_IN_VLLM & engine.extra_engine_args.keys():
                continue
        else:
            least, what = need.at_start, "for the model alone"
        if least > room:
            ways = _room_for_engine(config, share, least, need.at_start, room, total)
            raise ConfigError(
                f"{share.service} needs {_gib(least)} {what} and gets {_gib(room)} of its GPU: {ways}, or "
                "take a smaller model"
            )
        if need.peak > room:
            fewer = "engine.max_loras or " if config.learner.parameters == "all" else ""
            return [
                f"{share.service} may need {_gib(need.peak)} of the {_gib(room)} it gets on its GPU if turns "
                f"are long: set {fewer}engine.max_parallel_seq lower"
            ]
    return []


def _room_for_engine(
    config: RunConfig, share: Share, least: int, without_turns: int, room: int, total: int
) -> str:
    """Return what makes an engine fit its GPU: only what surely helps."""
    if not isinstance(config.engine, VllmEngineConfig):
        return "set engine.num_gpus = 0 to compute it on the CPU"
    ways = [] if share.num_gpus >= 1 else ["engine.gpu_memory_utilization higher"]
    if share.num_gpus >= 1 and least <= _MOST_OF_A_GPU * total:
        ways.append(f"engine.gpu_memory_utilization = {math.ceil(100 * least / total) / 100:g}")
    if without_turns < room:
        ways.append("engine.max_model_len lower")
    return "set " + " or ".join(ways or ["engine.tensor_parallel_size higher"])


def _less(config: RunConfig) -> str:
    """Return ways to take less memory, the least harmful first."""
    settings = config.learner
    ways = []
    if settings.max_train_len is None and config.engine.max_model_len is None:
        ways.append("set engine.max_model_len to the longest turn")
    if not (settings.activation_checkpointing or settings.gradient_checkpointing):
        ways.append("learner.activation_checkpointing = true (a third slower)")
    if settings.mini_batch_size > 1:
        ways.append("learner.mini_batch_tokens or learner.mini_batch_size lower")
    return ", or ".join(ways) or "use a machine with more"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.0f} MiB"


_ANSWER_S = 20.0
"""Seconds for the driver's answer: the first one after a start can take several."""


def this_machine() -> Machine:
    """Return what is here; GPUs are those that CUDA shows this process (``CUDA_VISIBLE_DEVICES``)."""
    gpus = _gpu_bytes()
    return Machine(
        gpus=len(gpus),
        gpu_bytes=min(gpus, default=None),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_free_memory(),
    )


def _gpu_bytes() -> list[int]:
    """Memory of each visible GPU. A driver that does not answer has no GPU that could be used."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(",") for line in answer.splitlines() if line.strip()]
    found = [(uuid.strip(), int(mib) * 2**20) for uuid, mib in rows]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [size for _, size in found]
    wanted = [name.strip() for name in visible.split(",") if name.strip()]
    by_name = {str(number): size for number, (_, size) in enumerate(found)} | dict(found)
    return [by_name[name] for name in wanted if name in by_name]


def _free_memory() -> int | None:
    """Bytes that processes can take: of the machine, or of the control group that holds this one."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return free
    if limit == "max":
        return free
    left = int(limit) - int(used)
    return left if free is None else min(free, left)
