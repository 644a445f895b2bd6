"""What a micro-batch's rows begin with is computed once: the same numbers and gradients, fewer tokens."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Gemma2Config, GraniteConfig, LlamaConfig, Qwen3Config

from tests.algorithms.test_reinforce import sample
from unstable_stream.algorithms import Reinforce, TokenBatch
from unstable_stream.algorithms.base import distinct_rows
from unstable_stream.algorithms.scoring import CompletionScorer

VOCABULARY = 24
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


def policy(config_class: type = LlamaConfig, **overrides: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(config_class(**SHAPE | overrides))
    return model.train()


def tensors(turns: Sequence[tuple[list[int], list[int]]]) -> TokenBatch:
    """A batch of prompts and completions."""
    algorithm = Reinforce()
    algorithm.device, algorithm.max_train_len = torch.device("cpu"), None
    return algorithm.prepare_batch([sample(prompt, completion) for prompt, completion in turns])


def call(
    scorer: CompletionScorer, batch: TokenBatch, shared_prefix: int, **options: Any
) -> tuple[Tensor, ...]:
    states = scorer.states(batch.input_ids, batch.positions, shared_prefix)
    return scorer.score(states, batch.targets, batch.temperatures, **options)


@given(
    st.integers(0, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.sampled_from([0, 1, 255, 256, 2**31 - 1]), min_size=width, max_size=width),
            min_size=1,
            max_size=8,
        )
    )
)
def test_equal_rows_are_found_as_numpy_finds_them(rows: list[list[int]]) -> None:
    array = np.array(rows, dtype=np.int64).reshape(len(rows), -1)
    found, of_row = distinct_rows(array)
    assert found[of_row].tolist() == rows
    if array.shape[1]:
        expected, expected_of_row = np.unique(array, axis=0, return_inverse=True)
        assert (found.tolist(), of_row.tolist()) == (expected.tolist(), expected_of_row.tolist())


def scored(
    model: nn.Module, batch: TokenBatch, shared_prefix: int
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Log-probabilities, entropies, and the gradient of a sum in which each token has a weight of its own."""
    model.zero_grad()
    logprobs, entropies = call(CompletionScorer(model), batch, shared_prefix, entropy_grad=True)
    weights = torch.arange(1.0, len(logprobs) + 1)
    (weights * (logprobs + 0.1 * entropies)).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return logprobs.detach(), entropies.detach(), gradients


def tokens_computed(model: Any, batch: TokenBatch) -> int:
    """How many tokens go through the decoder for one scoring of the batch."""
    scorer = CompletionScorer(model)
    counts = []
    decoder = model.get_decoder()
    with decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: counts.append(kwargs["input_ids"].numel()), with_kwargs=True
    ):
        call(scorer, batch, batch.shared_prefix)
    return sum(counts)


tokens = st.integers(1, VOCABULARY - 1)
rows = st.lists(
    st.tuples(st.lists(tokens, min_size=1, max_size=6), st.lists(tokens, min_size=1, max_size=3)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, deadline=None)
@given(prefix=st.lists(tokens, max_size=8), ends=rows)
def test_the_shared_prefix_is_what_all_prompts_begin_with_but_their_last_token(
    prefix: list[int], ends: list[tuple[list[int], list[int]]]
) -> None:
    prompts = [prefix + prompt for prompt, _ in ends]
    batch = tensors([(prefix + prompt, completion) for prompt, completion in ends])
    columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
    assert batch.shared_prefix == len(list(takewhile(lambda column: len(set(column)) == 1, columns)))


@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen3Config])
@settings(max_examples=15, deadline=None)
@given(prefix=st.lists(tokens, min_size=4, max_size=8), ends=rows)
def test_scores_and_gradients_are_those_of_whole_rows(
    config_class: type, prefix: list[int], ends: list[tuple[list[int], list[int]]]
) -> None:
    model = policy(config_class)
    batch = tensors([(prefix + prompt, completion) for prompt, completion in ends])
    logprobs, entropies, gradients = scored(model, batch, batch.shared_prefix)
    expected_logprobs, expected_entropies, expected_gradients = scored(model, batch, 0)
    torch.testing.assert_close(logprobs, expected_logprobs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies, rtol=1e-4, atol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, expected in expected_gradients.items():
        # Elements are sums of terms as large as the largest: float32 rounds each of them.
        noise = 1e-5 * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(gradients[name], expected, rtol=1e-3, atol=noise, msg=name)


def alike(count: int, prefix: int, own: int) -> TokenBatch:
    """Rows that begin with the same ``prefix`` tokens and go on with ``own`` others, completion included."""
    start = [1 + place % 7 for place in range(prefix)]
    # The last token is no input.
    return tensors([([*start, 10 + row, *range(1, own - 1)], [9]) for row in range(count)])


def test_equal_inputs_are_computed_once() -> None:
    """Turns of one position whose one-token answers differ; and a longer one that begins like another."""
    turns = [([1, 2], [3]), ([1, 2], [4]), ([5, 6], [3]), ([1, 2], [3]), ([1, 2], [3, 4])]
    batch = tensors(turns)
    assert batch.input_ids.tolist() == [[1, 2, 0], [1, 2, 3], [5, 6, 0]]
    assert batch.positions.tolist() == [1, 1, 7, 1, 4, 5]
    assert batch.targets.tolist() == [3, 4, 3, 3, 3, 4]
    assert batch.rows.tolist() == [0, 1, 2, 3, 4, 4]

    model = policy()
    logprobs, _, gradients = scored(model, batch, 0)
    one_by_one = [scored(model, tensors([turn]), 0)[0] for turn in turns]
    torch.testing.assert_close(logprobs, torch.cat(one_by_one), rtol=1e-4, atol=1e-5)
    assert any(gradient.abs().max() > 0 for gradient in gradients.values())


@pytest.mark.parametrize(
    ("count", "prefix", "own", "computed"),
    [(4, 10, 3, 10 + 4 * 2), (1, 10, 3, 12), (4, 1, 12, 4 * 12)],  # the last two: sharing saves little
)
def test_what_rows_share_is_computed_once(count: int, prefix: int, own: int, computed: int) -> None:
    assert tokens_computed(policy(), alike(count, prefix, own)) == computed


def test_a_window_of_attention_is_computed_whole() -> None:
    model = policy(Gemma2Config, sliding_window=4, query_pre_attn_scalar=8)
    assert tokens_computed(model, alike(count=4, prefix=10, own=3)) == 4 * 12


def test_a_model_that_recomputes_its_activations_is_computed_whole() -> None:
    model: Any = policy()
    scorer = CompletionScorer(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    batch = alike(count=4, prefix=10, own=3)
    assert tokens_computed(model, batch) == 4 * 12
    logprobs, _ = call(scorer, batch, batch.shared_prefix)
    logprobs.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize("trains_head", [False, True])
@pytest.mark.parametrize(
    ("config_class", "overrides"),
    [
        (LlamaConfig, {}),
        (Gemma2Config, {"query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0}),
        (GraniteConfig, {"logits_scaling": 3.0}),
    ],
)
def test_scores_in_chunks_are_those_of_all_at_once(
    config_class: type,
    overrides: dict[str, Any],
    trains_head: bool,
    entropy_grad: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = policy(config_class, **overrides)
    head = model.get_output_embeddings()
    head.requires_grad_(trains_head)
    scorer = CompletionScorer(model)
    targets = torch.arange(1, 8)
    temperatures = torch.linspace(0.5, 2.0, 7)

    def gradients() -> tuple[list[Tensor], int]:
        """Scores, their gradients by the states and, if it is trained, by the head; and runs of the head."""
        runs: list[int] = []
        states = torch.randn(7, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
        wanted = [states, head.weight] if trains_head else [states]
        with head.register_forward_hook(lambda _module, args, _output: runs.append(len(args[0]))):
            logprobs, entropies = scorer.score(states, targets, temperatures, entropy_grad=entropy_grad)
            assert entropies.requires_grad is entropy_grad
            loss = (torch.arange(1.0, 8.0) * (logprobs + (0.1 * entropies if entropy_grad else 0.0))).sum()
            found = torch.autograd.grad(loss, wanted)
        return [logprobs.detach(), entropies.detach(), *found], sum(runs)

    expected, _ = gradients()
    monkeypatch.setattr("unstable_stream.algorithms.scoring._CHUNK_ELEMENTS", 3 * VOCABULARY)
    found, positions = gradients()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    # A frozen head computes each position once: its part of the gradient is known with the score.
    assert positions == (14 if trains_head else 7)


def test_scores_in_chunks_without_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = CompletionScorer(policy().requires_grad_(False))
    monkeypatch.setattr("unstable_stream.algorithms.scoring._CHUNK_ELEMENTS", 3 * VOCABULARY)
    with torch.no_grad():
        logprobs, _ = scorer.score(torch.randn(7, 32), torch.arange(1, 8), torch.ones(7))
    assert not logprobs.requires_grad
