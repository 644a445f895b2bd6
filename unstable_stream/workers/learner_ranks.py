"""Several learners of one run, each in a process of its own on one machine (``learner.num_learners``).

The learner service is rank 0. It starts the others, sends each of them every batch, and trains as one of
them; :mod:`unstable_stream.learners.rank` says how they divide the work. Checkpoints are written by rank 0
and read by all.

A rank that dies takes the service with it: the others find their connection closed, and a restarted service
resumes all of them from the last checkpoint. When rank 0 dies the others read the end of their pipe, and end.
"""

import contextlib
import os
import pickle
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Final, NamedTuple

from unstable_stream.algorithms import BaseAlgo, TokenBatch
from unstable_stream.errors import LearnerError
from unstable_stream.events import AdapterProbe
from unstable_stream.learners import CheckpointInfo, CheckpointState, StandardLearner, TorchRank, UpdateResult
from unstable_stream.reward_transformations import build_sampling
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.placement import Share
from unstable_stream.update_decisions import Admission, TrainingSample
from unstable_stream.workers.checkpoint_home import CheckpointHome
from unstable_stream.workers.learner_core import build_learner, build_training_algorithm, learner_dtype

__all__ = ["LearnerGroup", "build_learners", "serve"]

_ENDS_WITHIN_S: Final = 20.0


class _Start(NamedTuple):
    """The start of a rank: everything it needs to build its learner."""

    config: RunConfig
    checkpoints: Path
    model_path: str
    share: Share | None
    dtype: str | None
    number: int
    meeting: Path


class _Other(NamedTuple):
    number: int
    process: "subprocess.Popen[bytes]"
    connection: Connection


class LearnerGroup:
    """The ranks of a run, with the face of one :class:`~unstable_stream.learners.StandardLearner`.

    Args:
        algorithm: that of rank 0, for its decisions; the other ranks build their own.
        dtype: what the learners compute in.

    Raises:
        LearnerError: a rank could not start; its output says why.
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: BaseAlgo,
        checkpoints: Path,
        model_path: str,
        share: Share | None,
        *,
        dtype: str | None,
    ) -> None:
        count = config.learner.num_learners
        self._directory = tempfile.TemporaryDirectory(prefix="unstable-stream-learners-")
        meeting = Path(self._directory.name, "meeting")
        starts = [
            _Start(config, checkpoints, model_path, share, dtype, number, meeting)
            for number in range(1, count)
        ]
        self._others = [_start(start) for start in starts]
        self._rank = TorchRank(0, count)
        try:
            self._first: StandardLearner[TrainingSample, TokenBatch] = build_learner(
                config, algorithm, checkpoints, model_path, share, dtype=dtype, rank=self._rank
            )
            for other in self._others:
                self._await_ready(other)
            self._tell("join")
            self._rank.join(meeting, on_gpu=self._first.device.type == "cuda")
        except BaseException:
            self.close()
            raise

    @property
    def step(self) -> int:
        """Updates done."""
        return self._first.step

    @property
    def samples_seen(self) -> int:
        """Samples trained on so far."""
        return self._first.samples_seen

    @property
    def process_ids(self) -> list[int]:
        """Of the other ranks, in their order."""
        return [other.process.pid for other in self._others]

    def update(
        self,
        samples: Sequence[TrainingSample],
        update_number: int,
        admissions: Sequence[Admission] | None = None,
        *,
        learning_rate_factor: float = 1.0,
    ) -> UpdateResult:
        """Train all ranks on one batch; see :meth:`StandardLearner.update`.

        Raises:
            LearnerError: as there; or a rank has died.
        """
        admissions = list(admissions) if admissions is not None else None
        try:
            self._tell("update", samples, update_number, admissions, learning_rate_factor)
            return self._first.update(
                samples, update_number, admissions, learning_rate_factor=learning_rate_factor
            )
        except (RuntimeError, OSError) as error:
            for other in self._others:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = other.process.wait(timeout=_ENDS_WITHIN_S)
                    raise LearnerError(
                        f"learner rank {other.number} ended during update {update_number}, status {status}; "
                        "its output says why. A restart resumes all ranks from the last checkpoint"
                    ) from error
            raise

    def load(self, path: Path | str, expect_sha256: str | None = None) -> CheckpointState:
        """Continue all ranks from a checkpoint; see :meth:`StandardLearner.load`."""
        self._tell("load", path, expect_sha256)
        return self._first.load(path, expect_sha256)

    def save(self, **settings: Any) -> CheckpointInfo:
        """Write a checkpoint; see :meth:`StandardLearner.save`."""
        return self._first.save(**settings)

    def probe(self) -> AdapterProbe:
        """Return what an engine must reproduce; see :meth:`StandardLearner.probe`."""
        return self._first.probe()

    def close(self) -> None:
        """End the other ranks."""
        for other in self._others:
            other.connection.close()
        for other in self._others:
            try:
                other.process.wait(timeout=_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                other.process.kill()
                other.process.wait()
        self._rank.leave()
        self._directory.cleanup()

    def _tell(self, *message: object) -> None:
        for other in self._others:
            other.connection.send(message)

    def _await_ready(self, other: _Other) -> None:
        try:
            problem = other.connection.recv()
        except EOFError:
            problem = f"it ended with status {other.process.wait()}; its output says why"
        if problem is not None:
            raise LearnerError(f"learner rank {other.number} could not start: {problem}")


def build_learners(
    config: RunConfig,
    algorithm: BaseAlgo,
    home: CheckpointHome,
    checkpoints: Path,
    model_path: str,
    share: Share | None,
) -> StandardLearner[TrainingSample, TokenBatch] | LearnerGroup:
    """Load the model for one learner, or for several."""
    dtype = learner_dtype(config, home, model_path, share)
    if config.learner.num_learners == 1:
        return build_learner(config, algorithm, checkpoints, model_path, share, dtype=dtype)
    return LearnerGroup(config, algorithm, checkpoints, model_path, share, dtype=dtype)


def _start(start: _Start) -> _Other:
    ours, theirs = Pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    ours.send_bytes(pickle.dumps(start))
    return _Other(start.number, process, ours)


def _end_with(descriptor: int) -> None:
    """End this process when rank 0 has closed the pipe: nccl would wait for it for half an hour."""
    poll = select.poll()
    poll.register(descriptor, select.POLLHUP)
    poll.poll()
    os._exit(0)


def serve(descriptor: int) -> None:
    """Be a rank until rank 0 is gone: the process's only call. ``descriptor``: its end of the pipe."""
    connection = Connection(descriptor)
    start: _Start = pickle.loads(connection.recv_bytes())  # from the process that started this one
    rank = TorchRank(start.number, start.config.learner.num_learners)
    threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()
    try:
        find_code(start.config)
        build_sampling(list(start.config.rewards.sampling))  # loads what samples may be made of
        learner = build_learner(
            start.config,
            build_training_algorithm(start.config),
            start.checkpoints,
            start.model_path,
            start.share,
            dtype=start.dtype,
            rank=rank,
        )
    except LearnerError as error:
        connection.send(str(error))
        return
    connection.send(None)
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return
        try:
            if name == "join":
                rank.join(start.meeting, on_gpu=learner.device.type == "cuda")
            elif name == "load":
                learner.load(*arguments)
            else:
                samples, number, admissions, factor = arguments
                learner.update(samples, number, admissions, learning_rate_factor=factor)
        except LearnerError as error:
            # Rank 0 meets the same error, or finds its connection closed; it must not wait for this one.
            sys.exit(f"learner rank {start.number}: {error}")
