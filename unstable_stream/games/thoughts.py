r"""Tell a model's answer from its thoughts: an action that it only thought of is not played.

Thoughts stand between ``<think>`` and ``</think>``, as of Qwen3 and DeepSeek R1, or the marks of others. The
beginning is often part of the prompt, so an answer may have an end of thoughts alone.
"""

import re
from typing import Final

_MARK: Final = re.compile(r"<(?P<end>/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)


def after_thoughts(text: str) -> str:
    """Return what stands after the last thought, and before one that does not end.

    Text without thoughts is returned as it is.
    """
    begin, end = 0, len(text)
    for mark in _MARK.finditer(text):
        if mark["end"]:
            begin, end = mark.end(), len(text)
        else:
            end = min(end, mark.start())
    return text[begin:end]


def open_thought(prompt: str) -> str:
    """Return the mark of a thought that the prompt leaves open; empty if it leaves none open."""
    marks = list(_MARK.finditer(prompt))
    return marks[-1].group() if marks and not marks[-1]["end"] else ""
