"""The learner core takes batches and returns a better adapter and its checkpoint. It uses no log, clock or
Ray.

An update is a function of weights, optimizer state, the algorithm's own state, batch and update number. The
seed and the update number decide the learning rate, the shuffle and dropout. So a run resumed from a
checkpoint continues the same curve, bit for bit on a CPU.
"""

import contextlib
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unstable_stream.errors import CheckpointError, LearnerError
from unstable_stream.events import AdapterProbe, DroppedStep, checkpoint_uid
from unstable_stream.learners.checkpoint import (
    CheckpointInfo,
    CheckpointState,
    attempt_directory,
    load_checkpoint,
    save_checkpoint,
    weight_file_content,
)
from unstable_stream.learners.computed_with import computed_with
from unstable_stream.learners.learning_rate import LrSchedule
from unstable_stream.learners.lora import (
    LoraSettings,
    adapter_config,
    adapter_weights,
    build_policy,
    checkpoint_activations,
    load_adapter_directory,
    load_adapter_weights,
)
from unstable_stream.learners.packing import micro_batches, optimizer_chunks
from unstable_stream.learners.probe import AdapterProber, Tokens, choose_tokens
from unstable_stream.learners.rank import Alone, Rank
from unstable_stream.learners.whole_model import (
    build_whole_policy,
    load_whole_weights,
    model_config,
    tokenizer_files,
    whole_weights,
)
from unstable_stream.update_decisions import Admission, left_out

__all__ = ["Algorithm", "LearnerSample", "LearnerSettings", "StandardLearner", "UpdateResult"]

_NAMED_IDS = 8
_OVERHEAD_TOKENS = 64
"""The price of a micro-batch beside its tokens, on a CPU. Measured with one thread: 132 of the quickstart's
player, 59 and 35 of models of 4 and 17 million parameters, 26 of SmolLM2 (``benchmarks.learner``). It depends
on nothing, so a batch is cut alike in every rank and on every machine."""
_DIVERGENCE_EVERY = 4
_DIVERGENCE_SHARE = 16
"""The divergence from the base model is measured in every fourth update, on every 16th sample."""


class LearnerSample(Protocol):
    """The fields of a training sample that the learner itself needs."""

    @property
    def step_id(self) -> str: ...
    @property
    def prompt_token_ids(self) -> NDArray[np.int32]: ...
    @property
    def completion_token_ids(self) -> NDArray[np.int32]: ...


SampleT = TypeVar("SampleT", bound=LearnerSample)
SampleT_contra = TypeVar("SampleT_contra", bound=LearnerSample, contravariant=True)
BatchT = TypeVar("BatchT")


class Network(Protocol):
    """A network that an algorithm trains beside the policy, and its peak learning rate."""

    @property
    def module(self) -> nn.Module: ...
    @property
    def learning_rate(self) -> float: ...


class Algorithm(Protocol[SampleT_contra, BatchT]):
    """The methods of an algorithm that the learner calls; ``unstable_stream.algorithms.BaseAlgo`` explains
    them.
    """

    @property
    def epochs(self) -> int: ...
    def initialize(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        max_generation_len: int,
        max_train_len: int | None,
        recompute_logits: bool = False,
    ) -> None: ...
    def networks(self) -> Mapping[str, Network]: ...
    def admit(self, sample: SampleT_contra) -> Admission: ...
    def begin_update(
        self, samples: Sequence[SampleT_contra], micro_batches: Sequence[Sequence[int]]
    ) -> None: ...
    @property
    def measures(self) -> bool: ...
    def measure(self, samples: Sequence[SampleT_contra]) -> Sequence[NDArray[np.float32]]: ...
    def begin_step(
        self,
        samples: Sequence[SampleT_contra],
        measured: Sequence[NDArray[np.float32]],
        generator: np.random.Generator,
    ) -> None: ...
    def prepare_batch(self, samples: Sequence[SampleT_contra]) -> BatchT: ...
    def update(self, batch: BatchT, *, scale: float, update: int) -> Mapping[str, Tensor]: ...
    def summarize(self, totals: Mapping[str, float]) -> dict[str, float]: ...
    @property
    def has_base(self) -> bool: ...
    def divergence(self, samples: Sequence[SampleT_contra]) -> Tensor: ...
    def finish_update(self, metrics: Mapping[str, float]) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The result of an update. The learner-update event holds it and the drops of the drawn batch."""

    update: int
    loss: float
    """Mean over the update's optimizer steps, weighted by their samples."""
    metrics: dict[str, float]
    trained_ids: tuple[str, ...]
    """Step ids in batch order, masked ones included."""
    dropped: tuple[DroppedStep, ...]
    """Ids of samples that the algorithm left out, all as ``truncated``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """The settings of training.

    Raises:
        LearnerError: they cannot work.
    """

    batch_size: int
    """The most samples of an update."""
    mini_batch_size: int
    """The most rows of a micro-batch. Rows of similar length share one; the gradient is still that of the
    whole batch."""
    mini_batch_tokens: int | None = None
    """The most tokens of a micro-batch, including padding; a longer row gets one of its own. ``None``: 4,096
    on a GPU and 1,024 on a CPU, which is as fast there and takes a quarter of the memory for activations."""
    learning_rate: float
    """The peak learning rate of AdamW."""
    lr_schedule: Mapping[str, Any] | LrSchedule | None = None
    """``{"type": "constant" | "linear" | "cosine", "final_fraction": …, "total": updates, "warmup":
    updates}``."""
    grad_clip: float = 1.0
    """Upper bound of the gradient's global L2 norm in each optimizer step."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    optimizer_steps_per_update: int = 1
    """The batch is shuffled and split into this many optimizer steps."""
    parameters: Literal["lora", "all"] = "lora"
    """``lora``: of an adapter; ``all``: of the model, full fine-tuning."""
    lora_cfg: Mapping[str, Any] | LoraSettings | None = None
    """``lora_rank``, ``lora_alpha``, ``lora_dropout``, ``target_modules`` (default: all projections),
    ``last_layers`` (default: all layers)."""
    initial_lora_path: Path | str | None = None
    """An adapter directory to start from."""
    max_train_len: int | None = None
    """The most tokens of a sample, prompt and completion together. The rest of the completion is cut off. A
    sample whose prompt fills it is dropped as ``truncated``. ``None``: no limit."""
    max_generation_len: int
    """The rollout's token limit, the normaliser of Dr. GRPO."""
    gradient_checkpointing: bool = False
    """Recompute activations with the model's own method."""
    activation_checkpointing: bool = False
    """Recompute every decoder layer and the logits; this works with every model."""
    seed: int = 0
    num_threads: int | None = None
    """PyTorch threads of this process; ``None``: do not change them."""

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "mini_batch_size",
            "mini_batch_tokens",
            "learning_rate",
            "grad_clip",
            "optimizer_steps_per_update",
            "max_train_len",
            "max_generation_len",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise LearnerError(f"{name} is {value}; expected a positive number")
        if self.gradient_checkpointing and self.activation_checkpointing:
            raise LearnerError(
                "gradient_checkpointing and activation_checkpointing are both set; they recompute the same "
                "activations, choose one"
            )
        if self.parameters == "all" and self.initial_lora_path is not None:
            raise LearnerError(
                f"initial_lora_path is {str(self.initial_lora_path)!r}, and parameters='all' trains none; to "
                "begin from a checkpoint of all parameters, give its directory as model_name"
            )


class StandardLearner(Generic[SampleT, BatchT]):
    """Train a LoRA adapter, or all parameters, with AdamW.

    Args:
        model_name: Hugging Face directory or id of the base model.
        settings: of training; :meth:`configure` changes some.
        algorithm: forms the loss; it is bound to this learner's policy.
        ckpt_root: the directory of checkpoints; every save makes a directory there, named by the model
            uid and a random word.
        device: default: CUDA if there is one, the GPU with the rank's number. bfloat16 autocast on CUDA,
            float32 on a CPU.
        dtype: of the base model and of activations, ``float32`` or ``bfloat16``; default: bfloat16 on a GPU,
            float32 on a CPU. The adapter, log-probabilities and the loss are float32 with both.
        gpu_memory_fraction: the most of the GPU's memory that this process may take; ``None``: no bound.
        rank: the place among several learners that train on the same batches; ``None``: there is one.

    Raises:
        LearnerError: the base model cannot be loaded or adapted.
    """

    def __init__(
        self,
        model_name: str,
        settings: LearnerSettings,
        *,
        algorithm: Algorithm[SampleT, BatchT],
        ckpt_root: Path | str,
        device: str | torch.device | None = None,
        dtype: str | None = None,
        gpu_memory_fraction: float | None = None,
        rank: Rank | None = None,
    ) -> None:
        if settings.num_threads is not None:
            torch.set_num_threads(settings.num_threads)
        self.model_name = model_name
        self.batch_size = settings.batch_size
        self.max_train_len = settings.max_train_len
        self.seed = settings.seed
        self.ckpt_root = Path(ckpt_root)
        self.parameters = settings.parameters
        self.lora = LoraSettings.from_settings(settings.lora_cfg)
        gpu = f"cuda:{rank.number}" if rank is not None else "cuda"
        self.device = torch.device(device or (gpu if torch.cuda.is_available() else "cpu"))
        self._on_gpu = self.device.type == "cuda"
        self._lower = (dtype or ("bfloat16" if self._on_gpu else "float32")) == "bfloat16"
        if self._on_gpu and gpu_memory_fraction is not None:
            # What is beyond belongs to an engine, which could not start anew if it were taken.
            torch.cuda.set_per_process_memory_fraction(gpu_memory_fraction, self.device.index)
        self._recompute_logits = settings.activation_checkpointing
        self._betas = settings.betas
        self._rank = rank or Alone()
        self._step = 0
        self._samples_seen = 0
        self._broken: str | None = None
        self._probe_tokens: list[Tokens] = []

        if self.parameters == "all":
            self.model = build_whole_policy(model_name, device=self.device)
        else:
            self.model = build_policy(
                model_name,
                self.lora,
                device=self.device,
                base_dtype=torch.bfloat16 if self._lower else torch.float32,
                seed=self.seed,
            )
        if settings.initial_lora_path is not None:
            load_adapter_directory(self.model, Path(settings.initial_lora_path), self.lora)
        if settings.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        elif settings.activation_checkpointing:
            checkpoint_activations(self.model)
        self.model.train()
        self._bind(algorithm, settings)
        with self._autocast():
            self._prober = AdapterProber(self.model)

    def configure(self, algorithm: Algorithm[SampleT, BatchT], settings: LearnerSettings) -> None:
        """Make the next updates with this algorithm and these settings.

        What training has come to stays, as if a checkpoint were loaded into a learner that was made so: the
        weights, the optimizer's state and the algorithm's own, as far as the new one has them.

        Args:
            algorithm: a new object, not bound to a policy yet.
            settings: those of the optimizer, of micro-batches and of threads change, and
                ``max_generation_len``; the others stay as they were made.

        Raises:
            LearnerError: the algorithm's networks have another shape.
        """
        if not self._step:  # nothing was trained: as a learner that was made so
            self._bind(algorithm, settings)
            return
        networks = {name: tensor.clone() for name, tensor in self._network_tensors().items()}
        optimizer, kept = self._optimizer.state_dict(), self.algorithm.state_dict()
        self._bind(algorithm, settings)
        self._take_over(networks, optimizer, kept, origin="the update before")

    def _bind(self, algorithm: Algorithm[SampleT, BatchT], settings: LearnerSettings) -> None:
        self.algorithm = algorithm
        self._settings = settings
        self.lr_schedule = LrSchedule.from_settings(settings.lr_schedule)
        self.mini_batch_tokens = settings.mini_batch_tokens or (4096 if self._on_gpu else 1024)
        # The same on every rank and after every restart: an algorithm may draw the weights of its networks.
        with self._autocast(), self._seeded(0, alike=True):
            algorithm.initialize(
                self.model,
                device=self.device,
                max_generation_len=settings.max_generation_len,
                max_train_len=self.max_train_len,
                recompute_logits=self._recompute_logits,
            )
            networks = dict(algorithm.networks())
        self._networks = {name: network.module for name, network in networks.items()}
        self._optimizer = torch.optim.AdamW(
            [
                {
                    "params": [parameter for parameter in module.parameters() if parameter.requires_grad],
                    "peak": peak,
                }
                for module, peak in (
                    (self.model, settings.learning_rate),
                    *((network.module, network.learning_rate) for network in networks.values()),
                )
            ],
            lr=settings.learning_rate,
            betas=self._betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @property
    def step(self) -> int:
        """Updates done."""
        return self._step

    @property
    def samples_seen(self) -> int:
        """Samples trained on so far."""
        return self._samples_seen

    def share_base(self, other: "StandardLearner[Any, Any]") -> None:
        """Compute with the base model of another learner, made with the same one, and let go of the own copy.

        What is trained stays apart: the adapters, or with ``parameters="all"`` everything.
        """
        theirs = dict(other.model.named_parameters())
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                parameter.data = theirs[name].data

    def update(
        self,
        samples: Sequence[SampleT],
        update_number: int,
        admissions: Sequence[Admission] | None = None,
        *,
        learning_rate_factor: float = 1.0,
    ) -> UpdateResult:
        """Train on one batch. ``admissions`` holds the decision about each sample; ``None``: ask the
        algorithm. ``learning_rate_factor`` multiplies the scheduled learning rate.

        A batch without a trainable token (every turn is truncated and masked or dropped) changes no weight
        and takes no optimizer step. It still counts as an update.

        Raises:
            LearnerError: the update is not the next one, the batch is empty or too large, or a loss or
                gradient is not finite. In the last case the optimizer step is not taken, and this object
                cannot be used until :meth:`load`: earlier optimizer steps of this update may be done and must
                not be saved.
        """
        self._check_usable()
        if update_number != self._step + 1:
            raise LearnerError(f"update {update_number} is out of turn; expected {self._step + 1}")
        if not 1 <= len(samples) <= self.batch_size:
            raise LearnerError(
                f"update {update_number} got {len(samples)} samples; "
                f"expected 1 to batch_size = {self.batch_size}"
            )
        if self._settings.num_threads is not None and torch.get_num_threads() != self._settings.num_threads:
            # A thread begins with what the last one in here set.
            torch.set_num_threads(self._settings.num_threads)
        if admissions is None:
            admissions = [self.algorithm.admit(sample) for sample in samples]
        dropped = left_out(samples, admissions)
        kept = [pair for pair in zip(samples, admissions, strict=True) if pair[1] != "drop"]
        factor = self.lr_schedule.factor(update_number) * learning_rate_factor
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * factor

        totals: dict[str, float] = defaultdict(float)
        norms: list[float] = []
        epochs = self.algorithm.epochs
        taken = [sample for sample, decision in kept if decision == "train"]
        (measured, *_) = self._rank.gather(self._measure_divergence(taken) if self._rank.number == 0 else {})
        self._probe_tokens = choose_tokens(taken) or self._probe_tokens
        if taken:
            with self._evaluating(), self._seeded(update_number, alike=True):
                self.algorithm.begin_update(taken, self._micro_batches(taken))
        with self._seeded(update_number):
            for indices in self._chunks(len(kept), update_number):
                trained = [kept[index][0] for index in indices if kept[index][1] == "train"]
                if trained:
                    share = len(indices) / len(kept)
                    if self.algorithm.measures:
                        self._begin_step(
                            trained, np.random.default_rng([self.seed, update_number, len(norms)])
                        )
                    norms.append(self._optimizer_step(trained, len(indices), share, update_number, totals))
        # Sums are those of one pass over the batch: the mean of all passes.
        for name in totals:
            totals[name] /= 1 if name.startswith("max_") else epochs
        self._step = update_number
        self._samples_seen += len(kept)
        loss = totals.pop("loss", 0.0)
        metrics = {
            "loss": loss,
            "samples": float(len(kept)),
            "samples_masked": float(sum(decision == "mask" for _, decision in kept)),
            "samples_dropped": float(len(dropped)),
            "optimizer_steps": float(len(norms)),
            "learning_rate": self._settings.learning_rate * factor,
            "grad_norm": sum(norms) / len(norms) if norms else 0.0,
            "padding_fraction": totals.pop("_padding", 0.0) / totals.pop("_padded_tokens", 1.0),
            "micro_batch_tokens_max": totals.pop("max__tokens", 0.0),
            **measured,
            **self.algorithm.summarize(totals),
        }
        self.algorithm.finish_update(metrics)
        return UpdateResult(
            update_number, loss, metrics, tuple(sample.step_id for sample, _ in kept), dropped
        )

    def save(
        self,
        *,
        positions: Mapping[str, int] | None = None,
        sampling: Mapping[str, Any] | None = None,
        full: bool = True,
        root: Path | None = None,
        model: str | None = None,
    ) -> CheckpointInfo:
        """Write the last update's checkpoint into a new directory in ``ckpt_root``.

        Args:
            positions: how far the log was read, to be kept with it.
            sampling: the state of the sampling transformations, likewise.
            full: whether to write the optimizer state.
            root: a directory to use in place of ``ckpt_root``, this time.
            model: the name of one of several trained models, for the directory's name.
        """
        self._check_usable()
        group = self._optimizer.param_groups[0]
        state = CheckpointState(
            update=self._step,
            base_model=self.model_name,
            parameters=self.parameters,
            lora=self._lora_dict(),
            seed=self.seed,
            samples_seen=self._samples_seen,
            positions=dict(positions or {}),
            settings={
                "learning_rate": self._settings.learning_rate,
                "betas": list(group["betas"]),
                "weight_decay": group["weight_decay"],
                "grad_clip": self._settings.grad_clip,
                "optimizer_steps_per_update": self._settings.optimizer_steps_per_update,
                "lr_schedule": {
                    name: getattr(self.lr_schedule, name) for name in LrSchedule.__dataclass_fields__
                },
            },
            algorithm=self.algorithm.state_dict(),
            sampling=dict(sampling or {}),
        )
        whole = self.parameters == "all"
        return save_checkpoint(
            attempt_directory(root or self.ckpt_root, checkpoint_uid(self._step, model)),
            weights=whole_weights(self.model) if whole else adapter_weights(self.model),
            config=model_config(self.model)
            if whole
            else adapter_config(self.model, self.model_name, self.lora),
            state=state,
            networks=self._network_tensors(),
            optimizer=self._optimizer.state_dict() if full else None,
            tokenizer=tokenizer_files(self.model_name) if whole else None,
        )

    def probe(self) -> AdapterProbe:
        """Return what an engine must reproduce before it plays with the present adapter.

        Its sequences are from the last batch; before any update, the policy's own most probable one.
        """
        self._check_usable()
        with self._autocast():
            return self._prober.measure(self._probe_tokens)

    def computed_with(self) -> dict[str, str]:
        """Return what decides on the last bits of an update, by name; call it in the thread that updates."""
        dtype = "bfloat16" if self._lower else "float32"
        return {**computed_with(self.device, dtype), "learners": str(self._rank.count)}

    def weights_sha256(self) -> str:
        """Return the digest that the weight file of a checkpoint would have now."""
        weights = whole_weights(self.model) if self.parameters == "all" else adapter_weights(self.model)
        return hashlib.sha256(weight_file_content(weights)).hexdigest()

    def load(self, path: Path | str, expect_sha256: str | None = None) -> CheckpointState:
        """Continue from a full checkpoint: restore weights, optimizer state and counters.

        Raises:
            CheckpointError: see :func:`~unstable_stream.learners.load_checkpoint`; or there is no optimizer
                state.
            LearnerError: the checkpoint has other parameters, another shape, alpha or seed than the
                configuration.
        """
        loaded = load_checkpoint(path, expect_sha256)
        if loaded.optimizer is None:
            raise CheckpointError(
                f"checkpoint {path} has no optimizer state (saved light, or pruned), so training cannot "
                "continue from it as it was; resume from a full one, or start a run with initial_lora_path "
                "set to it"
            )
        for name, found, expected in (
            ("parameters", loaded.state.parameters, self.parameters),
            ("lora_cfg", loaded.state.lora, self._lora_dict()),
            ("seed", loaded.state.seed, self.seed),
        ):
            if found != expected:
                raise LearnerError(
                    f"checkpoint {path} was made with {name} {found}; this learner has {expected}. "
                    "Resume with the run's own configuration"
                )
        load_weights = load_whole_weights if self.parameters == "all" else load_adapter_weights
        load_weights(self.model, loaded.weights, origin=str(path))
        self._take_over(
            loaded.networks, loaded.optimizer, loaded.state.algorithm, origin=f"checkpoint {path}"
        )
        self._step = loaded.state.update
        self._samples_seen = loaded.state.samples_seen
        self._broken = None
        return loaded.state

    def _take_over(
        self,
        networks: Mapping[str, Tensor],
        optimizer: Mapping[str, Any],
        algorithm: Mapping[str, Any],
        *,
        origin: str,
    ) -> None:
        """Go on with the state of another optimizer and algorithm over the same policy.

        Hyper-parameters come from the settings, because a resume may change them.
        """
        known = self._load_networks(networks, origin=origin)
        # Parameters are counted through, the policy's first.
        groups = self._optimizer.state_dict()["param_groups"]
        restored = {number for group in groups[: None if known else 1] for number in group["params"]}
        states = {number: state for number, state in optimizer["state"].items() if number in restored}
        self._optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.algorithm.load_state_dict(algorithm)

    def _load_networks(self, tensors: Mapping[str, Tensor], *, origin: str) -> bool:
        """Restore the algorithm's networks. An algorithm without them left none: they begin anew, and the
        answer is ``False``.

        Raises:
            LearnerError: the networks have other parameters.
        """
        expected = self._network_tensors()
        if not tensors or not expected:
            return False
        if {name: tensor.shape for name, tensor in tensors.items()} != {
            name: tensor.shape for name, tensor in expected.items()
        }:
            raise LearnerError(
                f"{origin} holds the networks {', '.join(sorted(tensors))}; the algorithm "
                f"{type(self.algorithm).__name__} has {', '.join(sorted(expected))}, or with other shapes. "
                "Resume with the run's own algorithm"
            )
        with torch.no_grad():
            for name, tensor in expected.items():
                tensor.copy_(tensors[name])
        return True

    def _network_tensors(self) -> dict[str, Tensor]:
        """Return the parameters of the algorithm's networks themselves, named ``network.parameter``."""
        return {
            f"{name}.{key}": tensor
            for name, module in self._networks.items()
            for key, tensor in module.state_dict().items()
        }

    def _chunks(self, count: int, update: int) -> Iterator[list[int]]:
        """Yield the samples of each optimizer step of an update, as indices."""
        for epoch in range(self.algorithm.epochs if count else 0):
            yield from optimizer_chunks(
                count, self._settings.optimizer_steps_per_update, seed=self.seed, update=update, epoch=epoch
            )

    def _micro_batches(self, samples: Sequence[SampleT]) -> list[list[int]]:
        """Divide samples into micro-batches, as indices; the one with most tokens comes first."""
        return micro_batches(
            [self._length(sample) for sample in samples],
            # So that nearly every rank has one.
            max_rows=min(self._settings.mini_batch_size, math.ceil(len(samples) / self._rank.count)),
            max_tokens=self.mini_batch_tokens,
            # A short pass leaves a GPU idle, so there as few as possible. Not measured.
            overhead_tokens=self.mini_batch_tokens if self._on_gpu else _OVERHEAD_TOKENS,
        )

    def _lora_dict(self) -> dict[str, Any]:
        return {} if self.parameters == "all" else self.lora.to_dict()

    def _optimizer_step(
        self, samples: list[SampleT], count: int, share: float, update: int, totals: dict[str, float]
    ) -> float:
        """Accumulate the gradient of ``samples``, clip it and step. Return the norm before clipping.

        Args:
            count: the number of samples in the mean: ``samples`` and the masked ones.
            share: the share of this optimizer step in the update's loss.
            totals: the update's sums, to which this step adds.
        """
        lengths = [self._length(sample) for sample in samples]
        batches = self._micro_batches(samples)
        self._optimizer.zero_grad(set_to_none=True)
        sums: list[Mapping[str, Tensor]] = []
        own = batches[self._rank.number :: self._rank.count]
        for indices in own:
            batch = self.algorithm.prepare_batch([samples[index] for index in indices])
            with self._autocast():
                sums.append(self.algorithm.update(batch, scale=1.0 / count, update=update))
        for indices in batches:
            padded = len(indices) * lengths[indices[0]]  # longest first
            totals["_padded_tokens"] += padded
            totals["_padding"] += padded - sum(lengths[index] for index in indices)
            totals["max__tokens"] = max(totals["max__tokens"], padded)
        # Before the gradients: gloo, which carries this, sees at once if a rank has died; nccl would wait.
        computed = [pair for part in self._rank.gather(_transferred(own, sums)) for pair in part]
        self._add_up_gradients()
        # Each network on its own: a large error of a critic must not make the policy's step small.
        norm, *own_norms = [
            nn.utils.clip_grad_norm_(group["params"], self._settings.grad_clip).item()
            for group in self._optimizer.param_groups
        ]
        losses = [values["loss"] for _, values in computed]
        if not all(map(math.isfinite, (norm, *own_norms, *losses))):
            norms = [norm, *own_norms]
            self._raise_not_finite(samples, [indices for indices, _ in computed], losses, norms, update)
        for _, values in computed:
            for name, value in values.items():
                if name.startswith("max_"):
                    totals[name] = max(totals.get(name, -math.inf), value)
                else:
                    totals[name] += value * (share if name == "loss" else 1.0)
        self._optimizer.step()
        return norm

    def _begin_step(self, samples: list[SampleT], generator: np.random.Generator) -> None:
        """Let the algorithm look at an optimizer step's samples; each rank measures its micro-batches."""
        own = self._micro_batches(samples)[self._rank.number :: self._rank.count]
        with self._evaluating(), torch.no_grad():
            parts = [(indices, self.algorithm.measure([samples[at] for at in indices])) for indices in own]
        measured = {
            index: values
            for part in self._rank.gather(parts)
            for indices, found in part
            for index, values in zip(indices, found, strict=True)
        }
        self.algorithm.begin_step(samples, [measured[index] for index in range(len(samples))], generator)

    def _add_up_gradients(self) -> None:
        """Sum each parameter's gradient over the ranks; one that had nothing to compute adds zeros."""
        if self._rank.count == 1:
            return
        gradients = []
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        self._rank.add_up(gradients)

    def _measure_divergence(self, samples: Sequence[SampleT]) -> dict[str, float]:
        """Estimate the divergence from the base model on a few of the samples, before training on them.

        It costs two forward passes of a sixteenth of the batch in every fourth update: 1.2 % of training,
        measured with the tiny player and batches of 640.
        """
        if self._step % _DIVERGENCE_EVERY or not samples or not self.algorithm.has_base:
            return {}
        chosen = samples[::_DIVERGENCE_SHARE]
        with self._evaluating():
            tokens = torch.cat(
                [
                    self.algorithm.divergence([chosen[index] for index in indices])
                    for indices in self._micro_batches(chosen)
                ]
            )
        return {"kl_to_base": tokens.mean().item()}

    def _raise_not_finite(
        self,
        samples: list[SampleT],
        batches: list[list[int]],
        losses: list[float],
        norms: list[float],
        update: int,
    ) -> None:
        bad = [batch for batch, loss in zip(batches, losses, strict=True) if not math.isfinite(loss)]
        ids = [samples[index].step_id for batch in (bad or batches) for index in batch]
        more = f" and {len(ids) - _NAMED_IDS} more" if len(ids) > _NAMED_IDS else ""
        self._optimizer.zero_grad(set_to_none=True)
        told = ", ".join(
            f"{norm} of {name}" if name else str(norm)
            for name, norm in zip(("", *self._networks), norms, strict=True)
        )
        self._broken = (
            f"update {update}: gradient norm {told}, loss {sum(losses)}: the step was not taken. "
            f"The cause is among steps {', '.join(ids[:_NAMED_IDS])}{more}. "
            "Resume from the last checkpoint with a lower learning_rate or grad_clip"
        )
        raise LearnerError(self._broken)

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise LearnerError(f"this learner stopped and needs a checkpoint loaded: {self._broken}")

    def _length(self, sample: SampleT) -> int:
        length = len(sample.prompt_token_ids) + len(sample.completion_token_ids)
        return length if self.max_train_len is None else min(length, self.max_train_len)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Put the policy into evaluation mode: no dropout disturbs what is measured, or takes random numbers
        from training.
        """
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            with self._autocast():
                yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._lower)

    @contextlib.contextmanager
    def _seeded(self, update: int, *, alike: bool = False) -> Iterator[Self]:
        """Seed PyTorch's global generators (dropout) from seed and update; restore them at the end.

        ``alike``: all ranks draw the same. Otherwise they do not: they train on different rows, which must
        not have the same dropout.
        """
        with torch.random.fork_rng(devices=[self.device] if self._on_gpu else []):
            rank = 0 if alike else self._rank.number
            torch.manual_seed((self.seed * 1_000_003 + update + rank * 1_000_000_007) % 2**63)
            yield self


def _transferred(
    batches: Sequence[list[int]], sums: Sequence[Mapping[str, Tensor]]
) -> list[tuple[list[int], dict[str, float]]]:
    """Return the sums of each micro-batch as numbers, transferred at once: each separate read would wait for
    the device.
    """
    if not sums:
        return []
    names = list(sums[0])
    table = torch.stack([torch.stack([row[name].float() for name in names]) for row in sums]).tolist()
    return [
        (indices, dict(zip(names, values, strict=True)))
        for indices, values in zip(batches, table, strict=True)
    ]
