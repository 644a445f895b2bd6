"""One configuration of training: an algorithm and an optimizer over a policy, and what one update does.

From the decisions about a batch to the optimizer's step, in this order:

1. measure the divergence from the base model, now and then, and let the algorithm look at the batch;
2. divide the batch into optimizer steps, and each of these into micro-batches of rows of similar length;
3. where the algorithm asks for it, compare all samples of a step;
4. compute the gradient of every micro-batch of this rank, and add the gradients up over the ranks;
5. clip, refuse what is not finite, and step.
"""

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from unstable_stream.algorithms import BaseAlgo
from unstable_stream.algorithms.learners.cutting import micro_batches, optimizer_chunks
from unstable_stream.algorithms.learners.rank import Rank
from unstable_stream.algorithms.learners.settings import LearnerSettings, UpdateResult
from unstable_stream.algorithms.update_decisions import Admission, TrainingSample
from unstable_stream.errors import LearnerError

_NAMED_IDS: Final = 8
_OVERHEAD_TOKENS: Final = 64
"""The price of a micro-batch beside its tokens, on a CPU. Measured with one thread: 132 of the quickstart's
player, 59 and 35 of models of 4 and 17 million parameters, 26 of SmolLM2 (``benchmarks.learner``). It depends
on nothing, so a batch is cut alike in every rank and on every machine."""
_DIVERGENCE_EVERY: Final = 4
_DIVERGENCE_SHARE: Final = 16
"""The divergence from the base model is measured in every fourth update, on every 16th sample."""
_POSITIONS: Final = 12
"""The positions whose answers are compared."""


class NotFiniteError(LearnerError):
    """A loss or gradient is not finite: the optimizer step was not taken, earlier ones of the update were."""


class Training:
    """Trains a policy.

    Args:
        model: the policy.
        algorithm: forms the loss; it is bound to the policy, so it must be a new one.
        settings: of training.
        rank: the place among several learners that train on the same batches.
        device: where the policy is.
        lower: whether activations are bfloat16.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: BaseAlgo,
        settings: LearnerSettings,
        rank: Rank,
        *,
        device: torch.device,
        lower: bool,
    ) -> None:
        self.model = model
        self.algorithm = algorithm
        self.settings = settings
        self.device = device
        self.lower = lower
        self._rank = rank
        self._on_gpu = device.type == "cuda"
        self.mini_batch_tokens = settings.mini_batch_tokens or (4096 if self._on_gpu else 1024)
        # The same on every rank and after every restart: an algorithm may draw the weights of its networks.
        with self.autocast(), self._seeded(0, alike=True):
            algorithm.initialize(
                model,
                device=device,
                max_generation_len=settings.max_generation_len,
                max_train_len=settings.max_train_len,
                recompute_logits=settings.activation_checkpointing,
            )
            networks = dict(algorithm.networks())
        self._networks = {name: network.module for name, network in networks.items()}
        # The policy's parameters come first: take_over counts on it.
        groups = {settings.learning_rate: _trainable(model)}
        if (ratio := settings.lora_cfg.loraplus_lr_ratio) != 1 and settings.parameters == "lora":
            groups = {
                settings.learning_rate: _trainable(model, "lora_A"),
                settings.learning_rate * ratio: _trainable(model, "lora_B"),
            }
        self._policy_groups = len(groups)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": parameters, "peak": peak}
                for peak, parameters in (
                    *groups.items(),
                    *((network.learning_rate, _trainable(network.module)) for network in networks.values()),
                )
            ],
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def update(
        self,
        samples: Sequence[TrainingSample],
        admissions: Sequence[Admission],
        update: int,
        *,
        learning_rate_factor: float,
    ) -> UpdateResult:
        """Train on one batch; a batch without a trainable token takes no optimizer step.

        Raises:
            NotFiniteError: see there.
        """
        kept = [pair for pair in zip(samples, admissions, strict=True) if pair[1] != "drop"]
        factor = self.settings.lr_schedule.factor(update) * learning_rate_factor
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        trained = [sample for sample, decision in kept if decision == "train"]
        measured = self._begin_update(trained, update)  # 1
        totals: dict[str, float] = defaultdict(float)
        norms: list[float] = []
        with self._seeded(update):
            for indices in self._chunks(len(kept), update):  # 2
                step = [kept[index][0] for index in indices if kept[index][1] == "train"]
                if step:
                    if self.algorithm.measures:
                        generator = np.random.default_rng([self.settings.seed, update, len(norms)])
                        self._begin_step(step, generator)  # 3
                    share = len(indices) / len(kept)
                    norms.append(self._optimizer_step(step, len(indices), share, update, totals))
        # Sums are those of one pass over the batch: the mean of all passes.
        for name in totals:
            totals[name] /= 1 if name.startswith("max_") else self.algorithm.epochs
        loss = totals.pop("loss", 0.0)
        metrics = {
            "loss": loss,
            "samples": float(len(kept)),
            "samples_masked": float(sum(decision == "mask" for _, decision in kept)),
            "samples_dropped": float(len(samples) - len(kept)),
            "optimizer_steps": float(len(norms)),
            "learning_rate": self.settings.learning_rate * factor,
            "grad_norm": sum(norms) / len(norms) if norms else 0.0,
            "padding_fraction": totals.pop("_padding", 0.0) / totals.pop("_padded_tokens", 1.0),
            "micro_batch_tokens_max": totals.pop("max__tokens", 0.0),
            **measured,
            **self.algorithm.summarize(totals),
        }
        self.algorithm.finish_update(metrics)
        if self.algorithm.reference is not None:
            self.algorithm.reference.follow()
        return UpdateResult(update, loss, metrics)

    def _begin_update(self, samples: list[TrainingSample], update: int) -> dict[str, float]:
        own = {}
        if self._rank.number == 0:
            own = self._measure_divergence(samples, update) | self._measure_information(samples, update)
        (measured, *_) = self._rank.gather(own)
        if samples:
            with self.evaluating(), self._seeded(update, alike=True):
                self.algorithm.begin_update(samples, self._micro_batches(samples))
        return measured

    def _chunks(self, count: int, update: int) -> Iterator[list[int]]:
        """Yield the samples of each optimizer step of an update, as indices."""
        for epoch in range(self.algorithm.epochs if count else 0):
            steps = self.settings.optimizer_steps_per_update
            yield from optimizer_chunks(count, steps, seed=self.settings.seed, update=update, epoch=epoch)

    def _micro_batches(self, samples: Sequence[TrainingSample]) -> list[list[int]]:
        """Divide samples into micro-batches, as indices; the one with most tokens comes first."""
        return micro_batches(
            [self._length(sample) for sample in samples],
            # So that nearly every rank has one.
            max_rows=min(self.settings.mini_batch_size, math.ceil(len(samples) / self._rank.count)),
            max_tokens=self.mini_batch_tokens,
            # A short pass leaves a GPU idle, so there as few as possible. Not measured.
            overhead_tokens=self.mini_batch_tokens if self._on_gpu else _OVERHEAD_TOKENS,
        )

    def _optimizer_step(
        self, samples: list[TrainingSample], count: int, share: float, update: int, totals: dict[str, float]
    ) -> float:
        """Accumulate the gradient of ``samples``, clip it and step. Return the norm before clipping.

        Args:
            count: the number of samples in the mean: ``samples`` and the masked ones.
            share: the share of this optimizer step in the update's loss.
            totals: the update's sums, to which this step adds.
        """
        lengths = [self._length(sample) for sample in samples]
        batches = self._micro_batches(samples)
        self.optimizer.zero_grad(set_to_none=True)
        sums: list[Mapping[str, Tensor]] = []
        own = batches[self._rank.number :: self._rank.count]
        self.algorithm.mean_length = sum(map(self.trained_tokens, samples)) / count
        for indices in own:
            batch = self.algorithm.prepare_batch([samples[index] for index in indices])
            with self.autocast():
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
            nn.utils.clip_grad_norm_(_trainable(module), self.settings.grad_clip).item()
            for module in (self.model, *self._networks.values())
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
        self.optimizer.step()
        return norm

    def _begin_step(self, samples: list[TrainingSample], generator: np.random.Generator) -> None:
        """Let the algorithm look at an optimizer step's samples; each rank measures its micro-batches."""
        own = self._micro_batches(samples)[self._rank.number :: self._rank.count]
        with self.evaluating(), torch.no_grad():
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
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        self._rank.add_up(gradients)

    def _measure_divergence(self, samples: Sequence[TrainingSample], update: int) -> dict[str, float]:
        """Measure the divergence from the base model on a few of the samples, before training on them.

        It costs two forward passes of a sixteenth of the batch in every fourth update: 1.2 % of training,
        measured with the tiny player and batches of 640.
        """
        if (update - 1) % _DIVERGENCE_EVERY or not samples or not self.algorithm.has_base:
            return {}
        chosen = samples[::_DIVERGENCE_SHARE]
        with self.evaluating():
            tokens = torch.cat(
                [
                    self.algorithm.divergence([chosen[index] for index in indices])
                    for indices in self._micro_batches(chosen)
                ]
            )
        return {"kl_to_base": tokens.mean().item()}

    def _measure_information(self, samples: Sequence[TrainingSample], update: int) -> dict[str, float]:
        """Estimate the mutual information of position and answer, in nats, before training.

        ``mean_i log [pi(y_i | x_i) / mean_j pi(y_i | x_j)]`` over some positions ``x``, their answers ``y``,
        at most the logarithm of their number: Wang et al., "RAGEN-2", arXiv:2604.06268. A policy that gives
        the same answers whatever it is shown has none, however many answers it has. Below a dozen positions
        chance alone makes it 0.

        All answers of one token are scored with one pass over the positions, in every update. Longer ones
        take a pass for each pair, so that many updates are left out as make it a sixteenth of a forward pass.
        """
        positions = {each.prompt_token_ids.tobytes(): each for each in samples}
        long = any(self.trained_tokens(each) > 1 for each in samples)
        every = math.ceil(16 * _POSITIONS**2 / self.settings.batch_size) if long else 1
        if len(positions) < _POSITIONS or (update - 1) % every:
            return {}
        chosen = [*positions.values()][:: len(positions) // _POSITIONS][:_POSITIONS]
        longest = max(len(each.prompt_token_ids) for each in chosen)
        # An answer has as many tokens at every position.
        room = None if self.settings.max_train_len is None else self.settings.max_train_len - longest
        said = [(each.completion_token_ids[:room], each.logprobs[:room]) for each in chosen]
        pairs = [
            replace(shown, completion_token_ids=tokens, logprobs=logprobs)
            for shown in chosen
            for tokens, logprobs in said
        ]
        table = self.answer_logprobs(pairs).view(_POSITIONS, _POSITIONS)  # by position and answer
        found = (table.diag() - table.logsumexp(0)).mean().item() + math.log(_POSITIONS)
        return {"answer_information": found}

    def answer_logprobs(self, samples: Sequence[TrainingSample]) -> Tensor:
        """Return the log-probability of each answer under the policy as it is, float64[B], on the CPU."""
        found = torch.empty(len(samples), dtype=torch.float64)
        with self.evaluating():
            for indices in self._micro_batches(samples):
                scores = self.algorithm.answer_logprobs([samples[at] for at in indices])
                found[indices] = scores.double().cpu()
        return found

    def _raise_not_finite(
        self,
        samples: list[TrainingSample],
        batches: list[list[int]],
        losses: list[float],
        norms: list[float],
        update: int,
    ) -> None:
        bad = [batch for batch, loss in zip(batches, losses, strict=True) if not math.isfinite(loss)]
        ids = [samples[index].step_id for batch in (bad or batches) for index in batch]
        more = f" and {len(ids) - _NAMED_IDS} more" if len(ids) > _NAMED_IDS else ""
        self.optimizer.zero_grad(set_to_none=True)
        where = ", ".join(
            f"{norm} of {name}" if name else str(norm)
            for name, norm in zip(("", *self._networks), norms, strict=True)
        )
        raise NotFiniteError(
            f"update {update}: gradient norm {where}, loss {sum(losses)}: the step was not taken. "
            f"The cause is among steps {', '.join(ids[:_NAMED_IDS])}{more}. "
            "Resume from the last checkpoint with a lower learning_rate or grad_clip"
        )

    def _length(self, sample: TrainingSample) -> int:
        length = len(sample.prompt_token_ids) + len(sample.completion_token_ids)
        return length if self.settings.max_train_len is None else min(length, self.settings.max_train_len)

    def trained_tokens(self, sample: TrainingSample) -> int:
        """Return how many tokens of an answer are trained on."""
        return self._length(sample) - len(sample.prompt_token_ids)

    # -- going on ---------------------------------------------------------------------------------

    def take_over(
        self,
        networks: Mapping[str, Tensor],
        optimizer: Mapping[str, Any],
        algorithm: Mapping[str, Any],
        *,
        origin: str,
    ) -> None:
        """Go on with the state of another optimizer and algorithm over the same policy.

        ``optimizer`` is what :meth:`state_dict` returned. A reference that is not in it begins as the policy.
        Hyper-parameters come from the settings, because a resume may change them.
        """
        known = self._load_networks(networks, origin=origin)
        # Parameters are counted through, the policy's first.
        groups = self.optimizer.state_dict()["param_groups"]
        kept = groups[: None if known else self._policy_groups]
        restored = {number for group in kept for number in group["params"]}
        states = {number: state for number, state in optimizer["state"].items() if number in restored}
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.algorithm.load_state_dict(algorithm)
        if self.algorithm.reference is not None:
            self.algorithm.reference.load_state_dict(optimizer.get("reference"))

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state and the weights of the reference: what training needs to go on, and
        play does not.
        """
        reference = self.algorithm.reference
        kept = {} if reference is None else {"reference": reference.state_dict()}
        return {**self.optimizer.state_dict(), **kept}

    def _load_networks(self, tensors: Mapping[str, Tensor], *, origin: str) -> bool:
        """Restore the algorithm's networks. An algorithm without them left none: they begin anew, and the
        answer is ``False``.

        Raises:
            LearnerError: the networks have other parameters.
        """
        expected = self.network_tensors()
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

    def network_tensors(self) -> dict[str, Tensor]:
        """Return the parameters of the algorithm's networks themselves, named ``network.parameter``."""
        return {
            f"{name}.{key}": tensor
            for name, module in self._networks.items()
            for key, tensor in module.state_dict().items()
        }

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the policy into evaluation mode: no dropout disturbs what is measured, or takes random numbers
        from training.
        """
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            with self.autocast():
                yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Compute activations in the lower precision, where that is set."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.lower)

    @contextlib.contextmanager
    def _seeded(self, update: int, *, alike: bool = False) -> Iterator[None]:
        """Seed PyTorch's global generators (dropout) from seed and update; restore them at the end.

        ``alike``: all ranks draw the same. Otherwise they do not: they train on different rows, which must
        not have the same dropout.
        """
        with torch.random.fork_rng(devices=[self.device] if self._on_gpu else []):
            rank = 0 if alike else self._rank.number
            torch.manual_seed((self.settings.seed * 1_000_003 + update + rank * 1_000_000_007) % 2**63)
            yield


def _trainable(module: nn.Module, part: str = "") -> list[nn.Parameter]:
    """Return the parameters that are trained, of those with ``part`` in their names."""
    named = module.named_parameters()
    return [parameter for name, parameter in named if parameter.requires_grad and part in name]


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
