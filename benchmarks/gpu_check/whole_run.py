"""A short whole run: it plays, trains, publishes and is audited, with engine and learner on the device."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch

from benchmarks.gpu_check.job import GIB, Job, Row
from unstable_stream.archive import query
from unstable_stream.errors import UnstableStreamError
from unstable_stream.history.proofs.verify import audit_run
from unstable_stream.log.open import opened_log
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.placement import place
from unstable_stream.services.launch.launcher import launch
from unstable_stream.services.launch.plan import this_machine

_UPDATES: Final = 3
_LOOK_EVERY_S: Final = 0.1

_RATES: Final = """
SELECT (SELECT count(*) FROM game_outcomes) AS games,
       (SELECT sum(completion_tokens) FROM trajectories) AS sampled,
       sum(metrics['completion_tokens']) AS trained,
       sum(duration_ms) / 1000 AS seconds,
       epoch_ms(max(occurred_at)) / 1000 - (SELECT min(epoch_ms(started_at)) / 1000 FROM games) AS span,
       first(metrics['is_ratio_mean'] ORDER BY update) AS ratio_mean,
       first(metrics['is_ratio_max'] ORDER BY update) AS ratio_max
FROM updates
"""


def measure_run(job: Job) -> Iterator[Row]:
    """Yield one row for each backend and engine that is installed."""
    engines = [name for name in ("transformers", "vllm") if name == "transformers" or _installed(name)]
    for backend in ("inline", "ray"):
        for engine in engines:
            row: Row = {"backend": backend, "engine": engine}
            if backend == "ray" and not _installed("ray"):
                yield row | {"skipped": "ray is not installed"}
                continue
            try:
                yield row | _run(job, _config(job, engine, backend))
            except UnstableStreamError as error:
                yield row | {"failed": str(error)}


def _config(job: Job, engine: str, backend: str) -> RunConfig:
    """Random models make no legal move, so four are allowed for each; rewards stay as they are, not zero."""
    return parse_config(
        {
            "name": f"gpu-check-{engine}-{backend}",
            "model": job.model,
            "backend": backend,
            "train_envs": [{"env_id": "TicTacToe-v0-train", "template": "qwen3-zs"}],
            "sampling": {"max_tokens": min(job.max_tokens, 32)},
            "engine": {"type": engine, "max_parallel_seq": 64},
            "collector": {"num_workers": 32, "num_eval_workers": 0, "invalid_moves_allowed": 3},
            "rewards": {"final": [], "sampling": []},
            "learner": {"iterations": _UPDATES, "batch_size": 64, "mini_batch_size": 16},
            "max_restarts": 0,
        }
    )


def _run(job: Job, config: RunConfig) -> Row:
    with tempfile.TemporaryDirectory(dir=job.work) as directory:
        data = DataDir(Path(directory))
        with _PeakMemory(job.device) as peak:
            run_id = asyncio.run(launch(config, data)).run_id
        ((games, sampled, trained, seconds, span, mean, most),) = query(data.archive, _RATES).rows
        audit = asyncio.run(_audit(config, data, run_id))
    return {
        "where": "; ".join(place(config, [this_machine()]).describe()),
        "games": games,
        "sampled_tokens_per_s": round(sampled / span),
        "trained_tokens_per_s": round(trained / seconds),
        "ratio_mean": round(mean, 6),
        "ratio_max": round(most, 6),
        "audit": "passed" if audit else "failed",
        **({} if peak.gib is None else {"peak_gib": round(peak.gib, 2)}),
    }


async def _audit(config: RunConfig, data: DataDir, run_id: str) -> bool:
    async with opened_log(config.log, data.log) as log:
        return (await audit_run(log, run_id)).ok


def _installed(package: str) -> bool:
    return find_spec(package) is not None


class _PeakMemory:
    """The most memory in use on the device by all processes, seen every tenth of a second."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.gib: float | None = None
        """``None`` without a GPU: the processes of a run have no sum worth reporting."""

    def __enter__(self) -> "_PeakMemory":
        if self._device.startswith("cuda"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            free, total = torch.cuda.mem_get_info()
            self.gib = max(self.gib or 0.0, (total - free) / GIB)
