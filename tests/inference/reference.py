"""The slow and obvious way to compute a model: one whole sequence at a time, in transformers and PEFT."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.inference.tiny_model import EOS_TOKEN_ID
from unstable_stream.inference.engine import Adapter, Completion, SamplingSettings


class Reference:
    """A base model in float32, and the adapters and whole models that were trained from it."""

    def __init__(self, model: Path) -> None:
        self._model_path = model
        self._models: dict[str | None, Any] = {}

    def logits(self, adapter: Adapter | None, token_ids: Sequence[int]) -> torch.Tensor:
        """Next-token logits after every position, shape (len(token_ids), vocabulary)."""
        uid = None if adapter is None else adapter.uid
        if uid not in self._models:
            whole = adapter is not None and Path(adapter.path, "model.safetensors").is_file()
            source = adapter.path if adapter is not None and whole else self._model_path
            model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
            if adapter is not None and not whole:
                model = PeftModel.from_pretrained(model, adapter.path)
            self._models[uid] = model.eval()
        with torch.no_grad():
            logits: torch.Tensor = self._models[uid](torch.tensor([list(token_ids)])).logits[0]
        return logits

    def logprobs(
        self,
        adapter: Adapter | None,
        prompt: Sequence[int],
        token_ids: Sequence[int],
        sampling: SamplingSettings | None = None,
    ) -> list[float]:
        """Log-probability of each token of a completion under the distribution that it was drawn from."""
        sampling = sampling or SamplingSettings()
        rows = self.logits(adapter, [*prompt, *token_ids])[len(prompt) - 1 : -1]
        drawn = [nucleus(row, sampling.temperature, sampling.top_p) for row in rows]
        return [float(row[token]) for row, token in zip(drawn, token_ids, strict=True)]

    def greedy(self, adapter: Adapter | None, prompt: Sequence[int], max_tokens: int) -> Completion:
        """The most probable tokens, with their log-probabilities at temperature 1."""
        token_ids: list[int] = []
        logprobs: list[float] = []
        while len(token_ids) < max_tokens and EOS_TOKEN_ID not in token_ids:
            row = self.logits(adapter, [*prompt, *token_ids])[-1].log_softmax(-1)
            token_ids.append(int(row.argmax()))
            logprobs.append(float(row.max()))
        return Completion(token_ids, logprobs, "stop" if EOS_TOKEN_ID in token_ids else "length")


def nucleus(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """By hand: log-probabilities after temperature and top-p (Holtzman et al. 2020), -inf outside."""
    probabilities = (logits.double() / temperature).softmax(-1)
    kept = torch.zeros_like(probabilities)
    mass = 0.0
    for token in probabilities.argsort(descending=True).tolist():
        kept[token] = probabilities[token]
        mass += float(probabilities[token])
        if mass >= top_p:
            break
    return (kept / kept.sum()).log()
