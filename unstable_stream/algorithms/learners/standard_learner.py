"""The learner core takes batches and returns a better adapter and its checkpoint. It uses no log, clock or
Ray.

An update is a function of weights, optimizer state, the algorithm's own state, batch and update number. The
seed and the update number decide the learning rate, the shuffle and dropout. So a run resumed from a
checkpoint continues the same curve, bit for bit on a CPU.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from unstable_stream.algorithms import BaseAlgo
from unstable_stream.algorithms.learners.checkpoint import (
    CheckpointInfo,
    CheckpointState,
    attempt_directory,
    load_checkpoint,
    save_checkpoint,
    weight_file_content,
)
from unstable_stream.algorithms.learners.hardware import computed_with
from unstable_stream.algorithms.learners.policy import Policy
from unstable_stream.algorithms.learners.rank import Rank
from unstable_stream.algorithms.learners.settings import LearnerSettings, UpdateResult
from unstable_stream.algorithms.learners.training import NotFiniteError, Training
from unstable_stream.algorithms.update_decisions import Admission, TrainingSample
from unstable_stream.errors import CheckpointError, LearnerError
from unstable_stream.events import AdapterProbe, ProbeSequence, checkpoint_uid, pack_floats, pack_tokens

_SEQUENCES: Final = 4
_TOKENS: Final = 32
_SCORED_TOKENS: Final = 8
"""vLLM computes what is before a scored token once for each of them: at most 1,000 tokens in all."""
_FIRST_TOKEN: Final = 1

_Tokens: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt and of its completion."""


class StandardLearner:
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
        algorithm: BaseAlgo,
        ckpt_root: Path | str,
        device: str | torch.device | None = None,
        dtype: str | None = None,
        gpu_memory_fraction: float | None = None,
        rank: Rank | None = None,
    ) -> None:
        if settings.num_threads is not None:
            torch.set_num_threads(settings.num_threads)
        gpu = f"cuda:{rank.number}" if rank is not None else "cuda"
        self.device = torch.device(device or (gpu if torch.cuda.is_available() else "cpu"))
        on_gpu = self.device.type == "cuda"
        lower = (dtype or ("bfloat16" if on_gpu else "float32")) == "bfloat16"
        if on_gpu and gpu_memory_fraction is not None:
            # What is beyond belongs to an engine, which could not start anew if it were taken.
            torch.cuda.set_per_process_memory_fraction(gpu_memory_fraction, self.device.index)
        self.ckpt_root = Path(ckpt_root)
        self.policy = Policy(model_name, settings, self.device, lower=lower)
        self._rank = rank or Rank()
        self.training = Training(
            self.policy.model, algorithm, settings, self._rank, device=self.device, lower=lower
        )
        self._probe_tokens: list[_Tokens] = []
        self._step = 0
        self._samples_seen = 0
        self._broken: str | None = None

    def configure(self, algorithm: BaseAlgo, settings: LearnerSettings) -> None:
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
        before = self.training
        networks = {name: tensor.clone() for name, tensor in before.network_tensors().items()}
        optimizer, kept = before.state_dict(), before.algorithm.state_dict()
        self.training = Training(
            self.policy.model,
            algorithm,
            before.settings.changed_to(settings),
            self._rank,
            device=self.device,
            lower=before.lower,
        )
        if self._step:  # else nothing was trained: as a learner that was made so
            self.training.take_over(networks, optimizer, kept, origin="the update before")

    @property
    def algorithm(self) -> BaseAlgo:
        """The present algorithm."""
        return self.training.algorithm

    @property
    def step(self) -> int:
        """Updates done."""
        return self._step

    @property
    def samples_seen(self) -> int:
        """Samples trained on so far."""
        return self._samples_seen

    def share_base(self, other: "StandardLearner") -> None:
        """Compute with the base model of another learner, made with the same one, and let go of the own copy.

        What is trained stays apart: the adapters, or with ``parameters="all"`` everything.
        """
        self.policy.share_base(other.policy)

    def update(
        self,
        samples: Sequence[TrainingSample],
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
        settings = self.training.settings
        if update_number != self._step + 1:
            raise LearnerError(f"update {update_number} is out of turn; expected {self._step + 1}")
        if not 1 <= len(samples) <= settings.batch_size:
            raise LearnerError(
                f"update {update_number} got {len(samples)} samples; "
                f"expected 1 to batch_size = {settings.batch_size}"
            )
        self._use_threads()
        if admissions is None:
            admissions = [self.algorithm.admit(sample) for sample in samples]
        trained = [
            sample for sample, decision in zip(samples, admissions, strict=True) if decision == "train"
        ]
        self._probe_tokens = choose_tokens(trained) or self._probe_tokens
        try:
            result = self.training.update(
                samples, admissions, update_number, learning_rate_factor=learning_rate_factor
            )
        except NotFiniteError as error:
            self._broken = str(error)
            raise
        self._step = update_number
        self._samples_seen += int(result.metrics["samples"])
        return result

    def answer_log_ratios(self, samples: Sequence[TrainingSample]) -> NDArray[np.float64]:
        """Return how much more probable each answer is under the policy as it is than under the one that
        played, as the log of the ratio, float64[B]; of what is trained on.
        """
        self._check_usable()
        self._use_threads()
        tokens = self.training.trained_tokens
        played = [sample.logprobs[: tokens(sample)].sum(dtype=np.float64) for sample in samples]
        ratios: NDArray[np.float64] = self.training.answer_logprobs(samples).numpy() - np.array(played)
        return ratios

    def _use_threads(self) -> None:
        wanted = self.training.settings.num_threads
        if wanted is not None and torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)  # a thread begins with what the last one in here set

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
        training, settings = self.training, self.training.settings
        state = CheckpointState(
            update=self._step,
            base_model=self.policy.model_name,
            parameters=settings.parameters,
            lora=self.policy.lora,
            seed=settings.seed,
            samples_seen=self._samples_seen,
            positions=dict(positions or {}),
            algorithm=self.algorithm.state_dict(),
            sampling=dict(sampling or {}),
        )
        config, others = self.policy.files()
        return save_checkpoint(
            attempt_directory(root or self.ckpt_root, checkpoint_uid(self._step, model)),
            weights=self.policy.weights(),
            config=config,
            state=state,
            networks=training.network_tensors(),
            optimizer=training.state_dict() if full else None,
            tokenizer=others,
        )

    def probe(self) -> AdapterProbe:
        """Return what an engine must reproduce before it plays with the present adapter: a few sequences as
        the policy scores them, with and without it (:mod:`unstable_stream.inference.adapter_proof`).

        They are from the last batch; before any update, the policy's own most probable one.
        """
        self._check_usable()
        with self.training.evaluating(), torch.no_grad():
            sequences = self._probe_tokens or [self._greedy()]
            logprobs = self._score(sequences)
            with self.algorithm.without_adapter():
                base_logprobs = self._score(sequences)
        return AdapterProbe(
            dtype=self._dtype,
            sequences=tuple(
                ProbeSequence(
                    prompt_token_ids=pack_tokens(prompt),
                    completion_token_ids=pack_tokens(completion),
                    logprobs=pack_floats(scores),
                    base_logprobs=pack_floats(base_scores),
                )
                for (prompt, completion), scores, base_scores in zip(
                    sequences, logprobs, base_logprobs, strict=True
                )
            ),
        )

    def _score(self, sequences: Sequence[_Tokens]) -> list[NDArray[np.float32]]:
        """Return the log-probabilities of each completion, at temperature 1."""
        width = max(len(prompt) + len(completion) for prompt, completion in sequences) - 1
        rows = [[*prompt, *completion[:-1]] for prompt, completion in sequences]
        positions = [
            row * width + len(prompt) - 1 + place
            for row, (prompt, completion) in enumerate(sequences)
            for place in range(len(completion))
        ]
        targets = [token for _, completion in sequences for token in completion]
        scorer, device = self.algorithm.scorer, self.device
        inputs = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
        states = scorer.states(inputs, torch.tensor(positions, device=device))
        ones = torch.ones(len(targets), device=device)
        scores, _ = scorer.score(states, torch.tensor(targets, device=device), ones)
        ends = np.cumsum([len(completion) for _, completion in sequences])
        return np.split(scores.cpu().numpy(), ends[:-1])

    def _greedy(self) -> _Tokens:
        """Return what the policy says after one token: probable tokens have little rounding noise."""
        tokens = [_FIRST_TOKEN]
        for _ in range(_SCORED_TOKENS):
            ids = torch.tensor([tokens], device=self.device)
            logits = self.policy.model(input_ids=ids, use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
        return tuple(tokens[:1]), tuple(tokens[1:])

    @property
    def _dtype(self) -> str:
        """The numbers that activations are computed in."""
        return "bfloat16" if self.training.lower else "float32"

    def computed_with(self) -> dict[str, str]:
        """Return what decides on the last bits of an update, by name; call it in the thread that updates."""
        return {**computed_with(self.device, self._dtype), "learners": str(self._rank.count)}

    def weights_sha256(self) -> str:
        """Return the digest that the weight file of a checkpoint would have now."""
        return hashlib.sha256(weight_file_content(self.policy.weights())).hexdigest()

    def load(self, path: Path | str, expect_sha256: str | None = None) -> CheckpointState:
        """Continue from a full checkpoint: restore weights, optimizer state and counters.

        Raises:
            CheckpointError: see :func:`~unstable_stream.algorithms.learners.checkpoint.load_checkpoint`; or
            there is no
                optimizer state.
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
        settings = self.training.settings
        for name, found, expected in (
            ("parameters", loaded.state.parameters, settings.parameters),
            ("lora_cfg", loaded.state.lora, self.policy.lora),
            ("seed", loaded.state.seed, settings.seed),
        ):
            if found != expected:
                raise LearnerError(
                    f"checkpoint {path} was made with {name} {found}; this learner has {expected}. "
                    "Resume with the run's own configuration"
                )
        self.policy.load(loaded.weights, origin=str(path))
        self.training.take_over(
            loaded.networks, loaded.optimizer, loaded.state.algorithm, origin=f"checkpoint {path}"
        )
        self._step = loaded.state.update
        self._samples_seen = loaded.state.samples_seen
        self._broken = None
        return loaded.state

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise LearnerError(f"this learner stopped and needs a checkpoint loaded: {self._broken}")


def choose_tokens(samples: Sequence[TrainingSample]) -> list[_Tokens]:
    """Take a few of a batch's samples: the end of each prompt and the beginning of its completion.

    Where completions are short, the last tokens of the prompt are scored like the completion's. Four tokens
    alone would say little: in a run with one-token answers bfloat16 moved one of them by a nat.
    """
    whole = [sample for sample in samples if len(sample.completion_token_ids)]
    return [_end_of(sample) for sample in whole[:: max(1, len(whole) // _SEQUENCES)][:_SEQUENCES]]


def _end_of(sample: TrainingSample) -> _Tokens:
    completion = sample.completion_token_ids[:_SCORED_TOKENS].tolist()
    tokens = (*sample.prompt_token_ids[len(completion) - _TOKENS :].tolist(), *completion)
    scored = min(_SCORED_TOKENS, len(tokens) - 1)
    return tokens[:-scored], tokens[-scored:]
