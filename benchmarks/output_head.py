"""Scores of completion tokens and the gradient of their states, where the output head is frozen.

Ours computes a token's part of the gradient with its logits, in the forward pass. The baseline is ours as it
is where the output head is trained: it computes each chunk of logits again in the backward pass. 1,024
tokens, one thread, in CPU time; the shapes of SmolLM2-135M and of a head a quarter as wide.
"""

import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.harness import compare, parser, report
from unstable_stream.algorithms.scoring import CompletionScorer

_TOKENS = 1024
_HEADS = ((576, 49_152), (144, 49_152))
"""Width and vocabulary."""


def _rate(hidden: int, vocabulary: int, *, trained: bool) -> Callable[[], float]:
    """Return what measures tokens per CPU second."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden,
        num_hidden_layers=1,
        num_attention_heads=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(shape)
    model.requires_grad_(False)
    model.get_output_embeddings().requires_grad_(trained)
    scorer = CompletionScorer(model)
    states = torch.randn(_TOKENS, hidden).requires_grad_()
    targets = torch.randint(vocabulary, (_TOKENS,))
    temperatures = torch.ones(_TOKENS)

    def measure() -> float:
        start = time.process_time()
        logprobs, _ = scorer.score(states, targets, temperatures)
        torch.autograd.grad(logprobs.sum(), states)
        return _TOKENS / (time.process_time() - start)

    return measure


def main() -> None:
    """Compare on both shapes."""
    options = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    comparisons = [
        compare(
            f"{hidden:,} wide, {vocabulary:,} tokens",
            _rate(hidden, vocabulary, trained=False),
            _rate(hidden, vocabulary, trained=True),
            unit="tokens per CPU second",
            rounds=options.rounds,
        )
        for hidden, vocabulary in _HEADS
    ]
    report("output head", comparisons, options.json, versions={"torch": torch.__version__})


if __name__ == "__main__":
    main()
