"""Load one policy into an engine of this process: a model, or a checkpoint of a run."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from unstable_stream.events import Checkpoint
from unstable_stream.log.stores import opened_checkpoint

if TYPE_CHECKING:
    from unstable_stream.inference.engine import Adapter
    from unstable_stream.inference.tokenizer import FileTokenizer
    from unstable_stream.inference.transformers.engine import TransformersEngine
    from unstable_stream.inference.vllm.engine import VllmEngine

EngineName: TypeAlias = Literal["transformers", "vllm"]


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """An engine with one policy; close the engine."""

    engine: "TransformersEngine | VllmEngine"
    tokenizer: "FileTokenizer"
    adapter: "Adapter | None"
    """``None``: the base model itself."""


def load_policy(
    path: str,
    checkpoint: Checkpoint | None,
    opened: ExitStack,
    *,
    engine: EngineName = "transformers",
    lora_rank: int = 8,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> LoadedPolicy:
    """Load a policy, which computes in float32; its files stay open until ``opened`` closes.

    Args:
        path: the directory of the base model.
        checkpoint: of a run with this base model; ``None``: the model itself.
        opened: gets what has to stay open.
        engine: what computes.
        lora_rank: of the checkpoint's adapter.
        chat_template_kwargs: variables of the model's chat template.

    Raises:
        ConfigError: the model cannot be loaded.
        EngineError: the checkpoint's weights are missing, or not those that were recorded.
    """
    from unstable_stream.inference.engine import Adapter
    from unstable_stream.inference.tokenizer import load_tokenizer

    adapter = None
    if checkpoint is not None and checkpoint.path is not None:
        saved = opened.enter_context(opened_checkpoint(checkpoint.path, checkpoint.sha256))
        adapter = Adapter(checkpoint.model_uid, str(saved), checkpoint.sha256, checkpoint.probe)
    tokenizer = load_tokenizer(path, chat_template_kwargs)
    return LoadedPolicy(_engine(engine, path, lora_rank), tokenizer, adapter)


def _engine(named: EngineName, path: str, lora_rank: int) -> "TransformersEngine | VllmEngine":
    if named == "vllm":
        from unstable_stream.inference.vllm.engine import VllmEngine

        return VllmEngine(path, dtype="float32", max_loras=1, lora_rank=lora_rank)
    from unstable_stream.inference.transformers.engine import TransformersEngine

    return TransformersEngine(path, dtype="float32", max_loras=1)
