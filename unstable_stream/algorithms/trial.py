"""Try an algorithm on three short turns and a policy of a few numbers, before a run starts with it."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from unstable_stream.algorithms.base import BaseAlgo, OwnNetwork, TrainingSample

_VOCABULARY = 8


class _TinyPolicy(nn.Module):
    """A tiny policy that looks like a Hugging Face model: the previous token selects a row of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(_VOCABULARY, _VOCABULARY)
        self.head = nn.Linear(_VOCABULARY, _VOCABULARY, bias=False)
        with torch.no_grad():
            self.table.weight.zero_()
            self.head.weight.copy_(torch.eye(_VOCABULARY))
        self.head.requires_grad_(False)
        text = SimpleNamespace()
        self.config = SimpleNamespace(get_text_config=lambda: text, hidden_size=_VOCABULARY)
        self.decoder = _TinyDecoder(self.table)

    def get_decoder(self) -> nn.Module:
        return self.decoder

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.table(input_ids)))


class _TinyDecoder(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.table(input_ids))


def try_algorithm(algorithm: BaseAlgo) -> None:
    """Make one update of a tiny policy, as the learner does.

    Raises:
        ValueError: the sums have no finite ``loss``, or a metric is no number. The algorithm's own exceptions
            are not caught.
    """
    policy = _TinyPolicy()
    algorithm.initialize(policy, device=torch.device("cpu"), max_generation_len=4, max_train_len=None)
    for name, network in algorithm.networks().items():
        if not isinstance(network, OwnNetwork):
            raise ValueError(f"networks()[{name!r}] is a {type(network).__name__}; expected an OwnNetwork")
    samples = [_sample(number, advantage) for number, advantage in enumerate((1.0, -1.0, 0.5))]
    admitted = [sample for sample in samples if algorithm.admit(sample) == "train"]
    if not admitted:
        return
    algorithm.begin_update(admitted, [range(len(admitted))])
    if algorithm.measures:
        with torch.no_grad():
            measured = algorithm.measure(admitted)
        algorithm.begin_step(admitted, measured, np.random.default_rng(0))
    batch = algorithm.prepare_batch(admitted)
    sums = algorithm.update(batch, scale=1.0 / len(samples), update=1)
    totals = {name: float(value) for name, value in sums.items()}
    if not np.isfinite(totals.get("loss", float("nan"))):
        raise ValueError(f"update returned {totals}, without a finite loss")
    metrics = algorithm.summarize(totals)
    odd = {name: value for name, value in metrics.items() if not isinstance(value, (int, float))}
    if odd:
        raise ValueError(f"summarize returned {odd}, which are no numbers")


def _sample(number: int, advantage: float) -> TrainingSample:
    length = number + 1
    return TrainingSample(
        step_id=f"trial-{number}",
        prompt_token_ids=np.array([1, 2], dtype=np.int32),
        completion_token_ids=np.arange(3, 3 + length, dtype=np.int32),
        logprobs=np.full(length, -np.log(_VOCABULARY), dtype=np.float32),
        advantage=advantage,
        trajectory_id="trial",
        turn_index=number,
    )
