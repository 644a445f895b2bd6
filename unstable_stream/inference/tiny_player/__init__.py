"""A language model of 0.34 M parameters that plays SimpleTak and TicTacToe legally but badly, on any CPU.

An ordinary Hugging Face directory (Qwen3 architecture, word-level tokenizer of 40 words), so that every
engine and learner treats it like any other base model. ``examples/tiny_player/README.md`` says how one is
made.
"""

from pathlib import Path

__all__ = ["tiny_player_path"]


def tiny_player_path() -> Path:
    """Return the directory of the shipped model: ``config.json``, ``tokenizer.json``, ``model.safetensors``.

    Its prompts are those of the templates ``simpletak-board`` and ``tictactoe-board``, and of ``kuhn-board``
    and ``leduc-board``, which look like them.
    """
    return Path(__file__).resolve().parent / "model"
