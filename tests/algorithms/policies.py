"""Policies small enough to work out by hand, with the face of a Hugging Face causal language model."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn


class BigramDecoder(nn.Module):
    """The state of a position is the embedding of its token: no position sees another."""

    def __init__(self, embeddings: nn.Embedding) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.embeddings(input_ids))


class BigramPolicy(nn.Module):
    """Next-token logits are a table row per token: ``table[token]``; starts at zero (uniform)."""

    def __init__(self, vocabulary: int = 4, soft_cap: float | None = None, hidden_scale: float = 1.0) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)
        self.head = nn.Linear(vocabulary, vocabulary, bias=False)
        with torch.no_grad():
            self.table.weight.zero_()
            self.head.weight.copy_(torch.eye(vocabulary))
        self.head.requires_grad_(False)
        self.decoder = BigramDecoder(self.table)
        text = SimpleNamespace(final_logit_softcapping=soft_cap)
        self.config = SimpleNamespace(get_text_config=lambda: text)
        self.soft_cap = soft_cap
        self.hidden_scale = hidden_scale

    def get_decoder(self) -> nn.Module:
        return self.decoder

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        logits = self.head(self.decoder(input_ids).last_hidden_state) * self.hidden_scale
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return SimpleNamespace(logits=logits)


def with_row(policy: BigramPolicy, row: int, logits: Sequence[float] | Tensor) -> BigramPolicy:
    """The policy, with these logits after the token ``row``."""
    with torch.no_grad():
        policy.table.weight[row] = torch.as_tensor(logits)
    return policy


class AdaptedTable(nn.Embedding):
    """An embedding with a trainable addition that can be switched off, as PEFT's layers can."""

    adapter_layer_names = ("weight",)

    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary, vocabulary)
        self.base = nn.Parameter(torch.zeros(vocabulary, vocabulary), requires_grad=False)
        self.enabled = True

    def enable_adapters(self, enabled: bool) -> None:
        self.enabled = enabled

    def forward(self, input: Tensor) -> Tensor:
        base = self.base[input]
        return base + super().forward(input) if self.enabled else base


class AdaptedBigramPolicy(BigramPolicy):
    """A bigram policy whose table is a base table, uniform at first, plus a trainable adapter."""

    def __init__(self, vocabulary: int = 4) -> None:
        super().__init__(vocabulary)
        self.table: AdaptedTable = AdaptedTable(vocabulary)
        with torch.no_grad():
            self.table.weight.zero_()
        self.decoder = BigramDecoder(self.table)
