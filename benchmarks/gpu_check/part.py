"""One part of the check in a process of its own: ``python -m benchmarks.gpu_check.part JOB ROWS``.

``JOB`` is a :class:`~benchmarks.gpu_check.job.Job` as JSON. Each row is appended to the file ``ROWS`` as soon
as it is measured, so that a crash loses none before it.
"""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_check.job import Job, Row, is_out_of_memory


def main() -> None:
    """Do the job and write its rows; a reason to skip it is a row too."""
    order = json.loads(sys.argv[1])
    job = Job(**order | {"lengths": tuple(order["lengths"])})
    with Path(sys.argv[2]).open("a", encoding="utf-8") as file:
        for row in _rows(job):
            file.write(json.dumps(row) + "\n")
            file.flush()


def _rows(job: Job) -> Iterator[Row]:
    try:
        yield from _measure(job)
    except ImportError as error:
        yield {"skipped": f"cannot be imported: {error}"}
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        yield {"skipped": "out of memory"}


def _measure(job: Job) -> Iterator[Row]:
    # Each part imports what it needs, so that a missing package skips no other part.
    if job.part == "machine":
        from benchmarks.gpu_check.machine import describe

        yield describe(job.device)
    elif job.part == "model":
        from benchmarks.gpu_check.shapes import build_model

        yield build_model(job.shape, Path(job.model), job.device)
    elif job.part == "learner":
        from benchmarks.gpu_check.learning import measure_learner

        yield from measure_learner(job)
    elif job.part == "launches":
        from benchmarks.gpu_check.launches import measure_launches

        yield from measure_launches(job)
    elif job.part == "transformers":
        from benchmarks.gpu_check.engines import measure_transformers

        yield from measure_transformers(job)
    elif job.part == "agreement":
        from benchmarks.gpu_check.engines import measure_agreement

        yield from measure_agreement(job)
    elif job.part == "vllm":
        if find_spec("vllm") is None:
            yield {"skipped": "vllm is not installed"}
            return
        from benchmarks.gpu_check.engines import measure_vllm

        yield from measure_vllm(job)
    elif job.part == "run":
        from benchmarks.gpu_check.whole_run import measure_run

        yield from measure_run(job)


if __name__ == "__main__":
    main()
