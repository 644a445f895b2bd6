"""Compute the log-probabilities of recorded completion tokens, with logits only for those tokens.

A causal language model spends most of its memory on logits: a row of vocabulary size for every position, also
in the prompt. Here the decoder runs on the whole input, but the output head runs only on the states that
predict a trained token, in chunks, of which one is in memory at a time. What a token adds to the gradient of
its own state is computed with the chunk, in the forward pass, and multiplied by the gradient of its score in
the backward pass: each score depends on one state. "Liger Kernel" (Hsu et al., arXiv:2410.10989) does so for
the cross-entropy. Where the output head itself is trained, chunks are computed again in the backward pass.

The prompts of one game begin alike: with its rules, or with a worked example. What all rows of a micro-batch
begin with runs through the decoder once, as a row of its own, and the other tokens of each row attend to its
keys and values. Gradients flow back through them, so the result is that of whole rows. "Prefix Grouper" (Liu
et al., arXiv:2506.05433) does this for the answers to one prompt.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from unstable_stream.errors import LearnerError

_CHUNK_ELEMENTS: Final = 2**24
"""Logits per chunk: 64 MB in float32."""
_GPU_CHUNK_ELEMENTS: Final = 2**26
"""Each chunk costs the time of many launches."""

_LEAST_SAVING: Final = 0.1
"""Share of a micro-batch's tokens that sharing its prefix must save: below it the second pass costs more."""

_PROBE_TOKENS: Final = (1, 2, 3, 0)
_PROBE_TOLERANCE: Final = 0.05
"""The largest accepted difference of logits. A missing cap or scale exceeds it by far."""
_PROBE_ROUNDINGS: Final = 4
"""And this many roundings of the largest logit: a model in bfloat16 rounds at each step of scaling and
capping, 0.1 for a logit of 25, while this class does so in float32."""


class ReferenceStates(NamedTuple):
    """The states of a reference policy before the tokens to score."""

    states: Tensor
    """[N, hidden]"""
    head: Mapping[str, Tensor]
    """Those parameters of its output head that are not the policy's, by name."""


class CompletionScorer:
    """Score tokens under a Hugging Face causal language model.

    Raises:
        LearnerError: the model has no separate decoder and output head, or changes its logits in a way that
            this class does not know. A probe compares both computations once, so that no model is trained on
            wrong logits.
    """

    def __init__(self, model: nn.Module, *, always_recompute: bool = False) -> None:
        hf_model: Any = model  # transformers publishes no types
        self._decoder = hf_model.get_decoder()
        self.head = hf_model.get_output_embeddings()
        if self.head is None or self._decoder is model:
            raise LearnerError(
                f"{type(model).__name__} has no separate decoder and output head; "
                "expected a Hugging Face causal language model"
            )
        config = hf_model.config.get_text_config()
        self._soft_cap: float | None = getattr(config, "final_logit_softcapping", None)  # Gemma 2 and later
        # Cohere multiplies by logit_scale, Granite divides by logits_scaling.
        self._scale = getattr(config, "logit_scale", None) or 1.0
        self._scale /= getattr(config, "logits_scaling", None) or 1.0
        self._always_recompute = always_recompute
        self._model = hf_model
        self._probe(model)
        self._shares_prefix = not always_recompute and self._probe_sharing()

    @property
    def hidden_size(self) -> int:
        """Length of the decoder's state of one position."""
        return int(self.head.weight.shape[1])

    def score(
        self,
        states: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        *,
        entropy_grad: bool = False,
        reference: ReferenceStates | None = None,
    ) -> tuple[Tensor, ...]:
        """Return log-probability and entropy of each target, float32[N] both, from its state [N, hidden].

        ``temperatures``, float32[N], divide the logits. ``entropy_grad``: the entropy must be differentiable.
        With a reference also the divergence KL(policy || reference) before each, float32[N] in nats: exact,
        a sum over the vocabulary, at the same temperature, with gradients.
        """
        elements = _GPU_CHUNK_ELEMENTS if states.is_cuda else _CHUNK_ELEMENTS
        chunk = max(1, elements // self.head.weight.shape[0])
        if len(targets) <= chunk and not self._always_recompute:
            return self._score(states, targets, temperatures, entropy_grad, reference)
        score = self._score_again if self._trains_head() else self._score_ahead
        parts = [
            score(
                states[start : start + chunk],
                targets[start : start + chunk],
                temperatures[start : start + chunk],
                entropy_grad,
                reference and reference._replace(states=reference.states[start : start + chunk]),
            )
            for start in range(0, len(targets), chunk)
        ]
        return tuple(torch.cat(values) for values in zip(*parts, strict=True))

    def states(self, input_ids: Tensor, positions: Tensor, shared_prefix: int = 0) -> Tensor:
        """Return the decoder's state at each position, [N, hidden].

        Args:
            input_ids: int64[D, T], padded on the right.
            positions: int64[N], indices into the flattened ``[D * T]`` states.
            shared_prefix: number of tokens with which all rows begin. None of ``positions`` is among them.
        """
        rows, width = input_ids.shape
        saving = shared_prefix * (rows - 1) / (rows * width)
        # A model that recomputes its activations would fill the cache twice.
        recomputes = getattr(self._model, "is_gradient_checkpointing", False)
        if not self._shares_prefix or recomputes or saving < _LEAST_SAVING:
            states = self._decoder(input_ids=input_ids, use_cache=False).last_hidden_state
        else:
            states = self._states_after(input_ids, shared_prefix)
            positions = positions - (positions // width + 1) * shared_prefix
        found: Tensor = states.reshape(-1, states.shape[-1]).index_select(0, positions)
        return found

    def _states_after(self, input_ids: Tensor, shared_prefix: int) -> Tensor:
        """Return the decoder's states after what all rows begin with, [D, T - shared_prefix, hidden]."""
        cache = self._decoder(input_ids=input_ids[:1, :shared_prefix], use_cache=True).past_key_values
        cache.batch_repeat_interleave(len(input_ids))
        rest = input_ids[:, shared_prefix:]
        states: Tensor = self._decoder(
            input_ids=rest, past_key_values=cache, use_cache=True
        ).last_hidden_state
        return states

    def _logits(self, states: Tensor, head: Mapping[str, Tensor] | None = None) -> Tensor:
        """``head``: parameters in place of the output head's own."""
        found: Tensor = functional_call(self.head, dict(head), states) if head else self.head(states)
        logits = found.float()
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._soft_cap is not None:
            logits = torch.tanh(logits / self._soft_cap) * self._soft_cap
        return logits

    def _score(
        self,
        states: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        entropy_grad: bool,
        reference: ReferenceStates | None,
    ) -> tuple[Tensor, ...]:
        distribution = F.log_softmax(self._logits(states) / temperatures[:, None], dim=-1)
        logprobs = distribution.gather(-1, targets[:, None]).squeeze(-1)
        divergence: tuple[Tensor, ...] = ()
        if reference is not None:
            with torch.no_grad():
                logits = self._logits(*reference)
                other = F.log_softmax(logits / temperatures[:, None], dim=-1)
            divergence = ((distribution.exp() * (distribution - other)).sum(-1),)
        with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
            if not entropy_grad:
                distribution = distribution.detach()
            entropy = -(distribution.exp() * distribution).sum(-1)
        return logprobs, entropy, *divergence

    def _trains_head(self) -> bool:
        return any(parameter.requires_grad for parameter in self.head.parameters())

    def _score_again(self, states: Tensor, *others: Any) -> tuple[Tensor, ...]:
        scores: tuple[Tensor, ...] = checkpoint(self._score, states, *others, use_reentrant=False)
        return scores

    def _score_ahead(self, states: Tensor, *others: Any) -> tuple[Tensor, ...]:
        if not (torch.is_grad_enabled() and states.requires_grad):
            return self._score(states, *others)
        rows = states.detach().requires_grad_()
        found = []
        for values in self._score(rows, *others):
            if values.requires_grad:
                (gradients,) = torch.autograd.grad(values.sum(), rows, retain_graph=True)
                values = _with_row_gradients(states, values.detach(), gradients)
            found.append(values)
        return tuple(found)

    def _probe(self, model: nn.Module) -> None:
        device = self.head.weight.device
        tokens = torch.tensor([_PROBE_TOKENS], device=device)
        training = model.training
        model.eval()
        with torch.no_grad():
            expected = model(input_ids=tokens, use_cache=False).logits.float()
            found = self._logits(self._decoder(input_ids=tokens, use_cache=False).last_hidden_state)
        model.train(training)
        difference = (expected - found).abs().max().item()
        rounding = torch.finfo(self.head.weight.dtype).eps * expected.abs().max().item()
        tolerance = _PROBE_TOLERANCE + _PROBE_ROUNDINGS * rounding
        if not difference <= tolerance:
            raise LearnerError(
                f"{type(model).__name__} changes its logits in a way this learner does not know: they differ "
                f"by {difference:.3g} on a probe; expected at most {tolerance:.3g}. "
                f"Use another base model, or teach {__name__} its scaling"
            )

    def _probe_sharing(self) -> bool:
        """Whether the decoder keeps a plain cache of keys and values, and computes the same with it."""
        parameters = inspect.signature(self._decoder.forward).parameters
        if "past_key_values" not in parameters or getattr(self._model, "is_gradient_checkpointing", False):
            return False
        first, second, *rest = _PROBE_TOKENS
        tokens = torch.tensor([[first, second, *rest], [first, second, *reversed(rest)]])
        tokens = tokens.to(self.head.weight.device)
        training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                whole = self._decoder(input_ids=tokens, use_cache=True)
                # A window or a recurrent state is another matter: the rows are computed whole.
                layers = getattr(whole.past_key_values, "layers", None)
                if not layers or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
                    return False
                shared = self._states_after(tokens, 2).float()
        finally:
            self._model.train(training)
        expected = whole.last_hidden_state[:, 2:].float()
        rounding = torch.finfo(self.head.weight.dtype).eps * expected.abs().max()
        return bool((expected - shared).abs().max() <= _PROBE_TOLERANCE + _PROBE_ROUNDINGS * rounding)


class _WithRowGradients(torch.autograd.Function):
    """Values [N], each a function of its own row of ``states`` [N, hidden], and their known gradients."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, values: Tensor, gradients: Tensor) -> Tensor:
        ctx.save_for_backward(gradients)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (gradients,) = ctx.saved_tensors
        return (gradient[:, None] * gradients).to(gradients.dtype), None, None


def _with_row_gradients(states: Tensor, values: Tensor, gradients: Tensor) -> Tensor:
    attached: Tensor = _WithRowGradients.apply(states, values, gradients)  # type: ignore[no-untyped-call]
    return attached
