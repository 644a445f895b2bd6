"""The quickstart: a tiny player learns SimpleTak."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from unstable_stream.api.build import load
from unstable_stream.api.run import Run

QUICKSTART: Final = Path(__file__).with_name("quickstart.toml")
"""The configuration, to copy and change."""

# A general model reads the whole observation in its own chat format and needs room to think.
_FOR_OTHER_MODELS: Final = (
    'train_envs=[{ env_id = "SimpleTak-v0-train", num_players = 2, template = "chat" }]',
    "sampling.max_tokens=64",
    "learner.parameters=lora",
    "learner.learning_rate=1e-4",
    "learner.mini_batch_size=8",
    "algorithm.entropy_coef=0.0",
)

# vLLM plays with adapters only; these are what an adapter of the tiny player learns well with.
_FOR_VLLM: Final = ("learner.parameters=lora", "learner.learning_rate=3e-3", "algorithm.entropy_coef=0.02")


def quickstart(
    model: str = "tiny-player", *, data: Path | str | None = None, overrides: Sequence[str] = ()
) -> Run:
    """Return the quickstart's run, checked and not started.

    Args:
        model: base model: directory or Hugging Face id.
        data: data directory.
        overrides: ``key.path=value``.
    """
    changes = [f"model={json.dumps(model, ensure_ascii=False)}"]  # JSON writes texts as TOML does
    if model != "tiny-player":
        changes += _FOR_OTHER_MODELS
    elif any(each in ("engine=vllm", "engine.type=vllm") for each in overrides):
        changes += _FOR_VLLM
    return load(QUICKSTART, data=data, overrides=[*changes, *overrides])
