"""The cost of a run, from the archive: time of processors and GPUs, memory, tokens, waiting, losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream.archive import query
from unstable_stream.errors import RunError
from unstable_stream.history.views.written import duration, number, share
from unstable_stream.log.stores.archive_address import ArchiveAddress


@dataclass(frozen=True, slots=True)
class PartCost:
    """A process of a run, or what can be told apart of it: a row of the view ``costs``."""

    process: str
    part: str | None
    """``None``: the process as a whole."""
    incarnations: int | None
    cpu_s: float
    gpu_s: float | None
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class UsedByProcesses:
    """All that the processes of a run have used."""

    cpu_s: float
    gpu_s: float
    record_cpu_s: float
    """Of ``cpu_s``, those of the log, the archive and the stream processors."""
    peak_memory_bytes: int | None
    peak_gpu_memory_bytes: int | None
    parts: Sequence[PartCost]


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of one run; the view ``run_costs`` describes each number. ``None``: not known."""

    run_id: str
    used: UsedByProcesses | None
    """``None``: they reported nothing, as in earlier versions."""
    prompt_tokens: int | None
    sampled_tokens: int | None
    trained_tokens: int | None
    learner_s: float | None
    learner_waits: float | None
    games_wait: float | None
    engines_wait: float | None
    generation_s: float | None
    lost_s: float
    faults: int
    checkpoint_bytes: int | None


_COLUMNS: Final = ", ".join(RunCost.__slots__[2:])
_USED: Final = "cpu_s, gpu_s, record_cpu_s, peak_memory_bytes, peak_gpu_memory_bytes"
_PARTS: Final = f"""
SELECT {", ".join(PartCost.__slots__)} FROM costs WHERE run_id = $run
ORDER BY max(cpu_s) OVER (PARTITION BY process) DESC, process, part IS NOT NULL, part = 'rest', cpu_s DESC
"""
USED_OVER_TIME: Final = """
    SELECT process, epoch(occurred_at) - epoch($start::TIMESTAMP) AS second,
        (cpu_s - lag(cpu_s) OVER life) / nullif(wall_s - lag(wall_s) OVER life, 0) AS cores,
        peak_memory_bytes / 1e6 AS memory_mb,
        nullif((gpu_s - lag(gpu_s) OVER life) / nullif(wall_s - lag(wall_s) OVER life, 0), 0) AS gpus,
        peak_gpu_memory_bytes / 1e6 AS gpu_memory_mb,
        NULL AS checkpoints_mb
    FROM process_costs WHERE run_id = $run
    WINDOW life AS (PARTITION BY process, incarnation ORDER BY wall_s)
    UNION ALL
    SELECT '', epoch(occurred_at) - epoch($start::TIMESTAMP), NULL, NULL, NULL, NULL,
        sum(size_bytes) OVER (ORDER BY occurred_at) / 1e6
    FROM checkpoints WHERE run_id = $run AND size_bytes > 0
    ORDER BY process, second
"""
"""The use of the processes of ``$run``, begun at ``$start``, from report to report, and the size of its
checkpoints: a row is of one of the two, with ``NULL`` for the other. The view ``costs`` has the sums."""


def run_cost(archive: ArchiveAddress, run_id: str) -> RunCost:
    """Return what a run has cost.

    Raises:
        RunError: the archive has no run of this id.
        ArchiveError: there is no archive.
    """
    asked = {"run": run_id}
    rows = query(archive, f"SELECT {_USED}, {_COLUMNS} FROM run_costs WHERE run_id = $run", asked).rows
    if not rows:
        raise RunError(f"the archive {archive} has no run {run_id!r}; unstable-stream runs lists them")
    (cpu_s, gpu_s, record_cpu_s, memory, gpu_memory, *rest) = rows[0]
    used = None
    if cpu_s is not None:
        parts = [PartCost(*row) for row in query(archive, _PARTS, asked).rows]
        used = UsedByProcesses(cpu_s, gpu_s, record_cpu_s, memory, gpu_memory, parts)
    return RunCost(run_id, used, *rest)


def cost_words(cost: RunCost) -> dict[str, str]:
    """Return what a run has cost in words, by title; the same titles for every run."""
    used = cost.used
    processors, memory = "not reported", "not reported"
    if used is not None:
        whole = [part for part in used.parts if part.part is None]
        divided = [part for part in used.parts if part.part] if len(whole) == 1 else whole
        parts = ", ".join(f"{part.part or part.process} {share(_of(part.cpu_s, used))}" for part in divided)
        record = share(_of(used.record_cpu_s, used))
        processors = f"{duration(used.cpu_s)} ({parts}); {record} of it for the record"
        if used.gpu_s:
            processors += f"; GPUs held for {duration(used.gpu_s)}"
        memory = _bytes(used.peak_memory_bytes)
        if used.peak_gpu_memory_bytes is not None:
            memory += f", {_bytes(used.peak_gpu_memory_bytes)} of GPUs"
    return {
        "CPU time": processors,
        "Memory of the largest process": memory,
        "Tokens": f"{number(cost.prompt_tokens)} read and {number(cost.sampled_tokens)} sampled in finished "
        f"games, {number(cost.trained_tokens)} trained on",
        "Waiting": f"learner for steps {share(cost.learner_waits)}, games for answers "
        f"{share(cost.games_wait)}, engines for requests {share(cost.engines_wait)}",
        "Thrown away by faults": f"{duration(cost.lost_s)} of generation, by {cost.faults:,} fault"
        f"{'' if cost.faults == 1 else 's'}",
        "Size of all checkpoints": _bytes(cost.checkpoint_bytes),
    }


def _of(cpu_s: float, used: UsedByProcesses) -> float | None:
    return cpu_s / used.cpu_s if used.cpu_s else None


def _bytes(count: int | None) -> str:
    return "–" if count is None else f"{count / 1e6:,.0f} MB"
