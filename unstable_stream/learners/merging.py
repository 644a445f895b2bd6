"""An adapter merged into its base model: a whole model, which others load without PEFT."""

from pathlib import Path

import transformers

from unstable_stream.errors import LearnerError
from unstable_stream.learners.base_model import no_progress_bar
from unstable_stream.learners.language_model import language_model_class

__all__ = ["merge_adapter"]


def merge_adapter(model_path: Path | str, adapter: Path, target: Path) -> None:
    """Write the model that base model and adapter are together, in the base model's own numbers.

    Each weight is rounded once: PEFT adds the adapter's float32 product to it in place.

    Args:
        model_path: directory of the base model.
        adapter: directory of the adapter.
        target: directory for ``config.json``, the weights and ``generation_config.json``.

    Raises:
        LearnerError: one of the two cannot be loaded, or they do not fit.
        OSError: the model cannot be written.
    """
    import peft  # takes a moment, and training does not need it

    with no_progress_bar():
        try:
            # The configuration is that of the base model as it is, its dropout included: others may train on.
            config = transformers.AutoConfig.from_pretrained(model_path)
            base = language_model_class(config).from_pretrained(model_path, dtype="auto")
            merged = peft.PeftModel.from_pretrained(base, adapter).merge_and_unload()
        except (OSError, ValueError, RuntimeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise LearnerError(
                f"the adapter {adapter} cannot be merged into {model_path}: {first}; expected the base model "
                "that it was trained on"
            ) from error
        merged.save_pretrained(target)
