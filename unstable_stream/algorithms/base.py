"""The micro-batch of tokens and the interface that all algorithms share.

Shape letters: ``B`` is the rows of a micro-batch, ``D`` its different inputs, ``T`` the longest of them,
``N`` the trained tokens of all rows.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unstable_stream.algorithms.reference import ReferencePolicy
from unstable_stream.algorithms.scoring import CompletionScorer, ReferenceStates
from unstable_stream.algorithms.update_decisions import Admission as Admission
from unstable_stream.algorithms.update_decisions import TrainingSample as TrainingSample
from unstable_stream.algorithms.update_decisions import admission
from unstable_stream.extensions import KINDS, Reference, RemembersArguments, Spec, build
from unstable_stream.extensions.build import refuse


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A micro-batch: padded inputs, and the trained tokens of all rows in one sequence.

    Prompt and padding never enter a loss: only trained tokens have entries in the ``[N]`` tensors. Inputs are
    padded on the right. A causal model does not look to the right, so no attention mask is needed. Rows with
    equal inputs share one, as turns of the same position do whose answer is a single token.
    """

    input_ids: Tensor
    """int64[D, T]: prompt and completion without its last token, then padding."""
    positions: Tensor
    """int64[N]: the index, in the flattened ``[D * T]``, of the state that predicts the token."""
    targets: Tensor
    """int64[N]: the sampled token."""
    behaviour_logprobs: Tensor
    """float32[N]"""
    temperatures: Tensor
    """float32[N]"""
    advantages: Tensor
    """float32[N]: each row's advantage, once per trained token."""
    rows: Tensor
    """int64[N]: the row of the token."""
    row_advantages: Tensor
    """float32[B]"""
    row_rewards: Tensor
    """float32[B]: each sample's own advantage, before an algorithm replaced it by ``row_advantages``."""
    first_tokens: Tensor
    """int64[B]: the index, among the ``N`` tokens, of each row's first."""
    shared_prefix: int = 0
    """Number of tokens with which all inputs begin, and which predict no trained token."""
    left_out: Tensor | None = None
    """bool[N]: tokens without a gradient of their advantage, where the optimizer step's tokens were compared
    (:meth:`BaseAlgo.begin_step`)."""
    penalised: Tensor | None = None
    """bool[N]: tokens with KL-Cov's penalty, likewise."""
    update_logprobs: Tensor | None = None
    """float32[N]: under the policy as the update began, where an algorithm looked (``begin_update``)."""

    def lengths(self) -> Tensor:
        """Return the number of trained tokens of each row, int64[B]."""
        return torch.diff(self.first_tokens, append=self.first_tokens.new_tensor([len(self.rows)]))

    def row_sums(self, values: Tensor) -> Tensor:
        """Return the sum of the values, float32[N], over the tokens of each row, float32[B]."""
        running = values.double().cumsum(0)  # over all rows, so a difference would lose digits in float32
        ends = running[self.first_tokens + self.lengths() - 1]
        return torch.diff(ends, prepend=ends.new_zeros(1)).float()

    def later_sums(self, values: Tensor) -> Tensor:
        """Return for each token the sum of the values at the later tokens of its row, float32[N]."""
        running = values.double().cumsum(0)
        return (running[self.first_tokens + self.lengths() - 1][self.rows] - running).float()


class OwnNetwork(NamedTuple):
    """A network that an algorithm trains beside the policy, for example a critic."""

    module: nn.Module
    """In float32, on the policy's device. The learner steps it, clips its gradient apart from the policy's,
    and keeps it in every checkpoint."""
    learning_rate: float
    """The peak; it follows the policy's schedule."""


class BaseAlgo(RemembersArguments, ABC):
    """Base class of the algorithms: one turns micro-batches into accumulated gradients.

    The learner divides the batch into micro-batches, clips and steps. It sets ``scale`` so that the gradients
    add up to the mean over the optimizer step's samples. It calls, in this order: :meth:`initialize` and
    :meth:`networks` once; for every update :meth:`admit` for each sample, :meth:`begin_update` once, then for
    each optimizer step :meth:`measure` and :meth:`begin_step` if it :attr:`measures`, and
    :meth:`prepare_batch` and :meth:`update` for each micro-batch, ``epochs`` times over the batch, and
    :meth:`summarize` and :meth:`finish_update` once.

    An algorithm with a state of its own that later updates depend on returns it from :meth:`state_dict`, and
    its networks from :meth:`networks`: every checkpoint holds both, so that a resumed run continues the same
    curve.
    """

    epochs: int = 1
    """Number of passes over the batch of an update."""
    reference: ReferencePolicy | None = None
    """A policy to compare with that is not the base model, if :meth:`initialize` made one. It follows after
    each update, and every checkpoint from which training can go on holds it."""

    model: nn.Module
    device: torch.device
    max_generation_len: int
    max_train_len: int | None
    mean_length: float = 1.0
    """Trained tokens per sample of the next optimizer step, masked samples included; the learner sets it."""
    scorer: CompletionScorer
    """Scores tokens under the policy as it is."""

    def initialize(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        max_generation_len: int,
        max_train_len: int | None,
        recompute_logits: bool = False,
    ) -> None:
        """Bind the algorithm to a policy (a Hugging Face causal language model).

        Args:
            model: the policy; its trainable parameters are the adapter's.
            max_generation_len: the rollout's token limit; token sums are divided by this constant.
            max_train_len: the most tokens of prompt and completion together; ``None``: no limit.
            recompute_logits: score in chunks, and recompute the logits of each chunk in the backward pass.
        """
        self.model = model
        self.device = device
        self.max_generation_len = max_generation_len
        self.max_train_len = max_train_len
        self.scorer = CompletionScorer(model, always_recompute=recompute_logits)
        # This attribute marks PEFT's layers; importing PEFT only to ask for their class would take seconds.
        self._adapter_layers = [layer for layer in model.modules() if hasattr(layer, "adapter_layer_names")]

    @property
    def has_base(self) -> bool:
        """Whether the policy has an adapter, which can be switched off to score the base model."""
        return bool(self._adapter_layers)

    @property
    def measures(self) -> bool:
        """Whether it compares all samples of an optimizer step before their gradient is computed; by default
        it does not.
        """
        return False

    def admit(self, sample: TrainingSample) -> Admission:
        """Decide about one sample; drop it if its prompt fills ``max_train_len``: no token to train on is
        left.

        A completion without tokens is masked: its token sum is zero.
        """
        return admission(sample, max_train_len=self.max_train_len)

    def networks(self) -> Mapping[str, OwnNetwork]:
        """Return the networks to train beside the policy, by name; by default none."""
        return {}

    def begin_update(self, samples: Sequence[TrainingSample], micro_batches: Sequence[Sequence[int]]) -> None:
        """Look at all samples of an update before any is trained on; by default nothing is done.

        The policy is in evaluation mode.

        Args:
            samples: the admitted samples with tokens to train on.
            micro_batches: a division of them into parts that fit into memory, as indices.
        """

    def measure(self, samples: Sequence[TrainingSample]) -> Sequence[NDArray[np.float32]]:
        """Return what :meth:`begin_step` needs to know of each sample of a micro-batch.

        It is called without gradients, for the micro-batches of this learner; the results go to all learners.
        """
        raise NotImplementedError(f"{type(self).__name__} measures, and has no method measure")

    def begin_step(
        self,
        samples: Sequence[TrainingSample],
        measured: Sequence[NDArray[np.float32]],
        generator: np.random.Generator,
    ) -> None:
        """Look at all samples of an optimizer step before their gradient is computed.

        Args:
            samples: those with tokens to train on, of all learners.
            measured: the result of :meth:`measure` for each.
            generator: the same in every learner, seeded with the run's seed, the update and the step.
        """

    def prepare_batch(
        self, samples: Sequence[TrainingSample], advantages: Sequence[float] | None = None
    ) -> TokenBatch:
        """Turn admitted samples into tensors on the policy's device, with the recorded tokens.

        ``advantages``: one for each sample, in place of its own.
        """
        limit = self.max_train_len
        prompts = np.array([len(sample.prompt_token_ids) for sample in samples])
        lengths = prompts + np.array([len(sample.completion_token_ids) for sample in samples])
        if limit is not None:
            lengths = np.minimum(lengths, limit)
        trained = lengths - prompts
        width = int(lengths.max()) - 1  # the last token is only a target, never an input
        input_ids = np.zeros((len(samples), width), dtype=np.int64)
        for row, sample, prompt, length in zip(input_ids, samples, prompts, lengths, strict=True):
            row[:prompt] = sample.prompt_token_ids
            row[prompt : length - 1] = sample.completion_token_ids[: length - 1 - prompt]
        rows = np.repeat(np.arange(len(samples)), trained)
        first = np.concatenate([[0], np.cumsum(trained)[:-1]])
        within = np.arange(len(rows)) - first[rows]
        shared_prefix = _shared_prefix(input_ids[:, : int(prompts.min()) - 1])
        input_ids, input_of_row = distinct_rows(input_ids)
        positions = input_of_row[rows] * width + prompts[rows] - 1 + within
        pairs = list(zip(samples, trained, strict=True))
        targets = np.concatenate([sample.completion_token_ids[:count] for sample, count in pairs])
        behaviour = np.concatenate([sample.logprobs[:count] for sample, count in pairs])
        row_rewards = np.array([sample.advantage for sample in samples], dtype=np.float32)
        row_advantages = row_rewards if advantages is None else np.array(advantages, dtype=np.float32)
        temperatures = np.array([sample.temperature for sample in samples], dtype=np.float32)
        return TokenBatch(
            input_ids=self._tensor(input_ids),
            positions=self._tensor(positions),
            targets=self._tensor(targets.astype(np.int64)),
            behaviour_logprobs=self._tensor(behaviour.astype(np.float32)),
            temperatures=self._tensor(temperatures[rows]),
            advantages=self._tensor(row_advantages[rows]),
            rows=self._tensor(rows),
            row_advantages=self._tensor(row_advantages),
            row_rewards=self._tensor(row_rewards),
            first_tokens=self._tensor(first),
            shared_prefix=shared_prefix,
        )

    def states(self, batch: TokenBatch) -> Tensor:
        """Return the policy's last hidden state before each trained token, [N, hidden]."""
        return self.scorer.states(batch.input_ids, batch.positions, batch.shared_prefix)

    @property
    def hidden_size(self) -> int:
        """Length of a hidden state of the policy."""
        return self.scorer.hidden_size

    def score(
        self, batch: TokenBatch, states: Tensor | None = None, *, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the policy's log-probability and entropy at each trained token, float32[N] both.

        Both belong to the distribution at the recorded temperature. The entropy carries gradients only on
        request, because that costs another pass over the vocabulary. ``states`` are those of :meth:`states`,
        if they were computed already.
        """
        logprobs, entropy = self.scorer.score(
            self.states(batch) if states is None else states,
            batch.targets,
            batch.temperatures,
            entropy_grad=entropy_grad,
        )
        return logprobs, entropy

    def states_of(self, batch: TokenBatch, reference: ReferencePolicy | None) -> ReferenceStates:
        """Return what a reference computes of a batch, without gradients; ``None``: the base model, which is
        the policy with its adapter switched off.

        Call it before :meth:`states`: gradients of what was computed earlier would be lost.
        """
        with torch.no_grad(), reference.in_place() if reference else self.without_adapter():
            states = self.states(batch)
        return ReferenceStates(states, reference.weights_of(self.scorer.head) if reference else {})

    def divergence(self, samples: Sequence[TrainingSample]) -> Tensor:
        """Return the divergence KL(policy || base model) before each trained token, float32[N], in nats."""
        batch = BaseAlgo.prepare_batch(self, samples)  # a subclass may make other tensors
        base = self.states_of(batch, None)
        with torch.no_grad():
            states = self.states(batch)
            return self.scorer.score(states, batch.targets, batch.temperatures, reference=base)[2]

    def answer_logprobs(self, samples: Sequence[TrainingSample]) -> Tensor:
        """Return the log-probability of each sample's answer as a whole, float32[B], in nats."""
        batch = BaseAlgo.prepare_batch(self, samples)
        with torch.no_grad():
            return batch.row_sums(self.score(batch)[0])

    @abstractmethod
    def update(self, batch: TokenBatch, *, scale: float, update: int) -> Mapping[str, Tensor]:
        """Add this micro-batch's gradient to the policy's parameters.

        Args:
            scale: one over the number of samples in the optimizer step.
            update: number of the learner update, counted from 1.

        Returns:
            Scalars on the device, including ``loss``: sums over the micro-batch. The learner adds them up
            over an update, but takes the maximum of names that begin with ``max_``.
        """

    def summarize(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Turn an update's totals into metrics; by default they are reported unchanged."""
        return dict(totals)

    def finish_update(self, metrics: Mapping[str, float]) -> None:
        """Adapt the algorithm's own state to an update's metrics; by default there is none."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later updates depend on, as JSON values; by default there is none."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; empty for a checkpoint that was saved without."""

    @contextlib.contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Compute with the base model alone; without an adapter, with the policy as it is."""
        layers: list[Any] = self._adapter_layers  # PEFT's layers; modules have no such method in their type
        try:
            for layer in layers:
                layer.enable_adapters(False)
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def build_algorithm(spec: Spec, where: str = "algorithm") -> BaseAlgo:
    """Return a fresh algorithm: a built-in's name, or a reference to a subclass of :class:`BaseAlgo`.

    Raises:
        ConfigError: the algorithm cannot be loaded, does not take its arguments, or is no :class:`BaseAlgo`.
    """
    kind = KINDS["algorithm"]
    algorithm = build(kind, spec, where)
    if not isinstance(algorithm, BaseAlgo):
        raise refuse(kind, Reference.parse(spec, where), where, f"makes a {type(algorithm).__name__}")
    return algorithm


def _shared_prefix(rows: NDArray[np.int64]) -> int:
    """Return the number of leading columns that are alike in all rows."""
    alike = (rows == rows[0]).all(axis=0)
    return int(alike.argmin()) if not alike.all() else len(alike)


def distinct_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the different rows of token ids, sorted, and for each row which of them it is.

    As ``np.unique(rows, axis=0, return_inverse=True)``, in a thirtieth of its time: that compares rows number
    by number. Of numbers that are not negative, with the highest byte first, the bytes sort alike.
    """
    keys = [row.tobytes() for row in rows.astype(">u4")]
    first = {key: number for number, key in reversed([*enumerate(keys)])}
    order = {key: number for number, key in enumerate(sorted(first))}
    return rows[[first[key] for key in order]], np.array([order[key] for key in keys])
