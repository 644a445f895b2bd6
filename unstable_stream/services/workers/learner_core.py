"""Build the training core of a run from its configuration, and compute with it beside the event loop.

A run may have several learners, each in a process of its own on one machine (``learner.num_learners``).
The learner service is rank 0. It starts the others, sends each of them every batch, and trains as one of
them; :mod:`unstable_stream.algorithms.learners.rank` says how they divide the work. Checkpoints are written
by rank 0 and read by all.

Where a run trains several models, each rank holds a learner of every model, over one base model, and all
models use the one process group. That is safe because they take turns at computing: rank 0 says what comes
next, and all ranks do it in that order.

A rank that dies takes the service with it: the others find their connection closed, and a restarted service
resumes all of them from the last checkpoint. When rank 0 dies the others read the end of their pipe, and end.
"""

import asyncio
import os
import pickle
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from unstable_stream.algorithms import BaseAlgo, build_algorithm
from unstable_stream.algorithms.learners.checkpoint import CheckpointState
from unstable_stream.algorithms.learners.rank import Rank, TorchRank
from unstable_stream.algorithms.learners.settings import LearnerSettings, LrSchedule, UpdateResult
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.algorithms.settings import BuiltInAlgorithmConfig
from unstable_stream.algorithms.update_decisions import Admission, TrainingSample
from unstable_stream.errors import LearnerError
from unstable_stream.inference.cores import available_cores, fastest_on_cpu
from unstable_stream.log.cpu_time import spending
from unstable_stream.log.stores.checkpoint_files import opened_checkpoint
from unstable_stream.reward_transformations import build_sampling
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.placement import Share
from unstable_stream.services.workers.checkpoint_home import CheckpointHome
from unstable_stream.services.workers.loading import loading

_T = TypeVar("_T")

_TRAINED_ROWS: Final = 256
"""Tokens to measure the number format with: enough to be bound by arithmetic, as micro-batches are."""
_DTYPE_NOTE: Final = "dtype"
"""The file with the choice of the number format."""
_ENDS_WITHIN_S: Final = 20.0


class LearnerPlan(NamedTuple):
    """Everything that it takes to build the learner of a model."""

    config: RunConfig
    checkpoints: Path
    model_path: str
    share: Share | None
    """Of the GPUs; ``None``: a GPU of its own, if any."""
    dtype: str | None
    """The number format; see :func:`learner_dtype`."""


def build_learner(
    plan: LearnerPlan,
    algorithm: BaseAlgo,
    *,
    rank: Rank | None = None,
    kind: Callable[..., StandardLearner] | None = None,
) -> StandardLearner:
    """Load the model. ``rank``: the place among several learners, and ``kind`` the class of this one."""
    settings, share = learner_settings(plan.config), plan.share
    with ExitStack() as opened:
        if begun := plan.config.learner.initial_lora_path:
            path = str(opened.enter_context(opened_checkpoint(begun)))
            settings = replace(settings, initial_lora_path=path)
        return (kind or StandardLearner)(
            plan.model_path,
            settings,
            algorithm=algorithm,
            ckpt_root=plan.checkpoints.absolute(),
            device=None if share is None or share.num_gpus else "cpu",
            dtype=plan.dtype,
            rank=rank,
            gpu_memory_fraction=None if share is None else share.memory_fraction,
        )


def learner_settings(config: RunConfig) -> LearnerSettings:
    """Return the settings of training, without an adapter to begin with; a resume may change them."""
    settings = config.learner
    return LearnerSettings(
        batch_size=settings.batch_size,
        max_train_len=settings.max_train_len,
        parameters=settings.parameters,
        lora_cfg=config.lora,
        gradient_checkpointing=settings.gradient_checkpointing,
        activation_checkpointing=settings.activation_checkpointing,
        seed=config.seed,
        learning_rate=settings.learning_rate,
        lr_schedule=LrSchedule(
            type=settings.lr_schedule,
            final_fraction=settings.lr_final_fraction,
            warmup=settings.lr_warmup_updates,
            total=settings.iterations,
        ),
        grad_clip=settings.grad_clip,
        weight_decay=settings.weight_decay,
        optimizer_steps_per_update=settings.optimizer_steps,
        mini_batch_size=settings.mini_batch_size,
        mini_batch_tokens=settings.mini_batch_tokens,
        max_generation_len=config.sampling.max_tokens,
        num_threads=settings.num_threads or max(1, available_cores() // settings.num_learners),
    )


def build_training_algorithm(config: RunConfig) -> BaseAlgo:
    """Return the algorithm of a run."""
    settings = config.algorithm
    if isinstance(settings, BuiltInAlgorithmConfig):
        return build_algorithm(settings.arguments(config.learner.iterations))
    return build_algorithm(settings.spec)


def learner_dtype(
    config: RunConfig, home: CheckpointHome, model_path: str, share: Share | None
) -> str | None:
    """Return the number format that the run's learners compute in; ``None``: their default for the device."""
    settings = config.learner
    if settings.dtype != "auto":
        return settings.dtype
    if share is None or share.num_gpus > 0:
        return None  # the learner's own default for the device
    return kept(
        home,
        lambda: fastest_on_cpu(
            "learner",
            model_path,
            rows=_TRAINED_ROWS,
            num_threads=settings.num_threads or available_cores(),
            backward=True,
        ),
    )


def kept(home: CheckpointHome, choose: Callable[[], str]) -> str:
    """Return the choice recorded beside the checkpoints of a run; else choose, and record it.

    A run that is resumed, also on another machine, computes in the same numbers: its curve goes on bit for
    bit. Checkpoints without a record were made in float32, before there was a choice.
    """
    recorded = home.read_note(_DTYPE_NOTE)
    if recorded is not None:
        return recorded.strip()
    chosen = "float32" if any(not name.startswith(".") for name in home.attempts()) else choose()
    home.write_note(_DTYPE_NOTE, f"{chosen}\n")
    return chosen


async def computed(work: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
    """Compute in a thread; a cancellation is raised when it has ended.

    Until then it uses PyTorch's random generators, which belong to whoever computes in this process next.
    """

    def counted() -> _T:
        with spending("learner"):
            return work(*arguments, **named)

    computing = asyncio.ensure_future(asyncio.to_thread(counted))
    try:
        return await asyncio.shield(computing)
    except asyncio.CancelledError:
        while not computing.done():
            with suppress(asyncio.CancelledError):  # a second one changes nothing: the first is raised below
                await asyncio.wait([computing])
        computing.exception()  # retrieved: the cancellation stands for it
        raise


class _Start(NamedTuple):
    """The first message to a rank."""

    number: int
    of: int
    """Ranks in all."""
    meeting: Path


class _Other(NamedTuple):
    number: int
    process: "subprocess.Popen[bytes]"
    connection: Connection


class _Ranks:
    """The processes of the ranks beside rank 0, which this process is, and the group of all."""

    def __init__(self, count: int) -> None:
        self.rank = TorchRank(0, count)
        self.models = 0
        """Models that all ranks have a learner of."""
        self._joined = False
        self._directory = tempfile.TemporaryDirectory(prefix="unstable-stream-learners-")
        self._meeting = Path(self._directory.name, "meeting")
        self.others = [_start(_Start(number, count, self._meeting)) for number in range(1, count)]

    def send(self, *message: object) -> None:
        for other in self.others:
            other.connection.send(message)

    def await_built(self) -> None:
        """Wait until the others have built the learner they were asked to; the first time, meet them.

        Raises:
            LearnerError: one could not.
        """
        for other in self.others:
            try:
                problem = other.connection.recv()
            except EOFError:
                problem = f"it ended with status {other.process.wait()}; its output says why"
            if problem is not None:
                raise LearnerError(f"learner rank {other.number} could not start: {problem}")
        self.models += 1

    def join(self, *, on_gpu: bool) -> None:
        """Meet the others, if that has not been."""
        if not self._joined:
            self.send("join", on_gpu)
            self.rank.join(self._meeting, on_gpu=on_gpu)
            self._joined = True

    def close(self) -> None:
        """End the other ranks."""
        for other in self.others:
            other.connection.close()
        for other in self.others:
            try:
                other.process.wait(timeout=_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                other.process.kill()
                other.process.wait()
        self.others = []
        self.rank.leave()
        self._directory.cleanup()


class LearnerGroup(StandardLearner):
    """The learners of one model in all ranks: rank 0, which sends the others what it does."""

    def __init__(self, ranks: _Ranks, *arguments: Any, **named: Any) -> None:
        """Make rank 0's; the arguments are those of :class:`StandardLearner`."""
        super().__init__(*arguments, **named)
        self.ranks = ranks
        self.number = ranks.models
        """The number of the model in all ranks."""

    @property
    def process_ids(self) -> list[int]:
        """Of the other ranks, in their order."""
        return [other.process.pid for other in self.ranks.others]

    def update(
        self,
        samples: Sequence[TrainingSample],
        update_number: int,
        admissions: Sequence[Admission] | None = None,
        *,
        learning_rate_factor: float = 1.0,
    ) -> UpdateResult:
        """Train all ranks on one batch.

        Raises:
            LearnerError: as in one learner; or a rank has died.
        """
        admissions = list(admissions) if admissions is not None else None
        try:
            self.ranks.send("update", self.number, samples, update_number, admissions, learning_rate_factor)
            return super().update(
                samples, update_number, admissions, learning_rate_factor=learning_rate_factor
            )
        except (RuntimeError, OSError) as error:
            for other in self.ranks.others:
                with suppress(subprocess.TimeoutExpired):
                    status = other.process.wait(timeout=_ENDS_WITHIN_S)
                    raise LearnerError(
                        f"learner rank {other.number} ended during update {update_number}, status {status}; "
                        "its output says why. A restart resumes all ranks from the last checkpoint"
                    ) from error
            raise

    def load(self, path: Path | str, expect_sha256: str | None = None) -> CheckpointState:
        """Continue all ranks from a checkpoint."""
        self.ranks.send("load", self.number, path, expect_sha256)
        return super().load(path, expect_sha256)

    def close(self) -> None:
        """End the other ranks, for all models."""
        self.ranks.close()


def build_learners(
    config: RunConfig,
    algorithm: BaseAlgo,
    home: CheckpointHome,
    checkpoints: Path,
    model_path: str,
    share: Share | None,
    *,
    shares_base_with: StandardLearner | None = None,
) -> StandardLearner:
    """Load the model for one learner, or for several.

    ``shares_base_with``: what this returned for another trained model of the run, whose base model and ranks
    this one uses too.

    Raises:
        LearnerError: a rank could not start; its output says why.
    """
    other = shares_base_with
    dtype = learner_dtype(config, home, model_path, share)
    plan = LearnerPlan(config, checkpoints, model_path, share, dtype)
    if config.learner.num_learners == 1:
        learner = build_learner(plan, algorithm)
        if other is not None:
            learner.share_base(other)
        return learner
    ranks = other.ranks if isinstance(other, LearnerGroup) else _Ranks(config.learner.num_learners)
    try:
        ranks.send("build", plan)
        learner = build_learner(plan, algorithm, rank=ranks.rank, kind=partial(LearnerGroup, ranks))
        if other is not None:
            learner.share_base(other)
        ranks.await_built()
        ranks.join(on_gpu=learner.device.type == "cuda")
    except BaseException:
        ranks.close()
        raise
    return learner


def configure(learner: StandardLearner, config: RunConfig) -> BaseAlgo:
    """Make the next updates with the settings of this configuration; return its algorithm.

    Raises:
        LearnerError: see :meth:`StandardLearner.configure`.
        ConfigError: the algorithm cannot be loaded here.
    """
    find_code(config)
    algorithm = build_training_algorithm(config)
    if isinstance(learner, LearnerGroup):
        learner.ranks.send("configure", learner.number, config)
    learner.configure(algorithm, learner_settings(config))
    return algorithm


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
    rank = TorchRank(start.number, start.of)
    threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()
    learners: list[StandardLearner] = []
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return
        try:
            if name == "build":
                learners.append(_build(arguments[0], rank, learners))
                connection.send(None)
            elif name == "join":
                rank.join(start.meeting, on_gpu=arguments[0])
            elif name == "load":
                number, *place = arguments
                learners[number].load(*place)
            elif name == "configure":
                configure(learners[arguments[0]], arguments[1])
            else:
                number, samples, update, admissions, factor = arguments
                learners[number].update(samples, update, admissions, learning_rate_factor=factor)
        except LearnerError as error:
            if name == "build":
                connection.send(str(error))
                return
            # Rank 0 meets the same error, or finds its connection closed; it must not wait for this one.
            sys.exit(f"learner rank {start.number}: {error}")


def _build(plan: LearnerPlan, rank: TorchRank, others: Sequence[StandardLearner]) -> StandardLearner:
    config = plan.config
    with loading():
        find_code(config)
        build_sampling(list(config.rewards.sampling))  # loads what samples may be made of
        algorithm = build_training_algorithm(config)
        learner = build_learner(plan, algorithm, rank=rank)
        if others:
            learner.share_base(others[0])
    return learner
