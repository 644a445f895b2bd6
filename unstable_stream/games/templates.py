r"""Define prompt templates, each with the extraction of the action from the completion.

A template turns an observation into the text a model is given, and a completion back into what the
environment understands: the last ``\boxed{4}`` becomes ``[4]``. Thoughts are never searched for it: they
stand between ``<think>`` and ``</think>``, as of Qwen3 and DeepSeek R1, or the marks of others. The beginning
is often part of the prompt, so an answer may have an end of thoughts alone.

To bring your own, write a function from observation to text, or a class with ``format`` and ``extract``, and
name it where a template is named, e.g. ``template = "path/to/file.py:mine"``. No wording assumes a number of
players.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from unstable_stream.errors import ConfigError, did_you_mean
from unstable_stream.extensions import KINDS, Reference, build, entry_points_of
from unstable_stream.extensions.build import refuse
from unstable_stream.games.board_templates import BOARD_TEMPLATES


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A prompt template, and the extraction of the action from a completion."""

    name: str
    format: Callable[[str], str]
    """Observation to prompt text."""
    extract: Callable[[str], tuple[str, dict[str, bool]]]
    """Completion to action and format feedback (``correct_answer_format``)."""
    chat: bool = False
    """The text is the user's message: the player wraps it in the tokenizer's own chat template. Otherwise
    it is the whole prompt, markup included."""
    spellings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By a move's name in the environment, completions that are read as it, beside the name itself: where the
    exploitability of a policy is measured, their probabilities are the move's."""


def extract_boxed(completion: str) -> tuple[str, dict[str, bool]]:
    r"""Return the content of the last ``\boxed{…}`` in brackets, and whether there was one.

    Braces may nest; a box that is never closed does not count. A content that already holds a bracketed
    action is left as it is, so ``\boxed{[4]}`` and ``\boxed{4}`` both give ``[4]``. Without a box (or with an
    empty one) all that follows the thoughts goes to the environment, which finds an action in it or calls it
    invalid.
    """
    answer = after_thoughts(completion)
    content = _last_boxed(answer)
    return _extracted(answer, _bracketed(content.strip()) if content and content.strip() else None)


def extract_bracketed(completion: str) -> tuple[str, dict[str, bool]]:
    """Return the last ``[…]`` after the thoughts, and whether there was one; else all that follows them."""
    answer = after_thoughts(completion)
    found = _BRACKETS.findall(answer)
    return _extracted(answer, found[-1] if found else None)


def _extract_first_bracketed(completion: str) -> tuple[str, dict[str, bool]]:
    answer = after_thoughts(completion)
    found = _BRACKETS.search(answer)
    return _extracted(answer, found and found.group())


def extract_cell(completion: str) -> tuple[str, dict[str, bool]]:
    """Return the first bracketed cell after the thoughts, e.g. ``[5]``, and whether there was one.

    Without one all that follows them is returned, stripped, and the environment decides.
    """
    answer = after_thoughts(completion)
    match = _CELL.search(answer)
    return _extracted(answer, match and f"[{match.group(1)}]")


def _extracted(answer: str, action: str | None) -> tuple[str, dict[str, bool]]:
    return answer.strip() if action is None else action, {"correct_answer_format": action is not None}


def _extract_boxed_after_thought(completion: str) -> tuple[str, dict[str, bool]]:
    return extract_boxed(_THOUGHT + completion)


_BRACE: Final = re.compile(r"\\boxed\{|\{|\}")
_BRACKETS: Final = re.compile(r"\[[^\[\]\n]+\]")
_CELL: Final = re.compile(r"\[\s*(\d+)\s*\]")
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


def _last_boxed(text: str) -> str | None:
    """Return the content of the closed box that begins last. One pass: completions can be degenerate."""
    found: slice | None = None
    open_braces: list[int | None] = []
    for brace in _BRACE.finditer(text):
        if brace.group() != "}":
            open_braces.append(brace.end() if len(brace.group()) > 1 else None)
        elif open_braces:
            begin = open_braces.pop()
            if begin is not None and (found is None or begin > found.start):
                found = slice(begin, brace.start())
    return None if found is None else text[found]


def _bracketed(content: str) -> str:
    return content if "[" in content and "]" in content else f"[{content}]"


_THOUGHT: Final = "<think>\n"
"""Opened for the model, as the chat templates of Qwen3's and DeepSeek's reasoning models do."""
_TASK: Final = (
    "You are a player in the game described below. Choose a valid action that helps you win. "
    "Think it through step by step, then write your final action inside \\boxed{}."
)
_ZERO_SUM: Final = (
    "You are a player in a zero-sum game: what one side wins, the others lose. Choose a valid action that "
    "leads to your win. Think it through step by step, then write your final action inside \\boxed{}."
)
_ANSWER: Final = (
    "You are a player in the game described below. Choose a valid action that helps you win. "
    "Answer with the action in brackets and nothing else."
)
_SOLO: Final = (
    "Solve the task described below on your own. Choose a valid next action. "
    "Think it through step by step, then write your final action inside \\boxed{}."
)
_REASONING: Final = (
    "You are playing a game. First reason about the position between <think> and </think>: what each action "
    "leads to and how the others may answer. Then give one valid action inside \\boxed{}."
)


def _default(observation: str) -> str:
    return f"{_TASK}\n\n{observation.strip()}\n\nAnswer:\n"


def _qwen3(task: str) -> Callable[[str], str]:
    def format_observation(observation: str) -> str:
        return (
            f"<|im_start|>user\n{task}\n\nObservation:\n{observation.strip()}\n<|im_end|>\n"
            "<|im_start|>assistant\n"
        )

    return format_observation


def _qwen3_reasoning(observation: str) -> str:
    return (
        f"<|im_start|>system\n{_REASONING}<|im_end|>\n"
        f"<|im_start|>user\n{observation.strip()}<|im_end|>\n"
        f"<|im_start|>assistant\n{_THOUGHT}"
    )


def _gemma3(observation: str) -> str:
    # Gemma has no system role; the tokenizer adds the leading <bos>.
    return f"<start_of_turn>user\n{_ZERO_SUM}\n\n{observation.strip()}<end_of_turn>\n<start_of_turn>model\n"


def _llama_instruct(observation: str) -> str:
    return (
        f"<|start_header_id|>system<|end_header_id|>\n\n{_ZERO_SUM}<|eot_id|>"
        f"<|start_header_id|>user<|end_header_id|>\n\n{observation.strip()}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def _chat(observation: str) -> str:
    return f"{_TASK}\n\n{observation.strip()}"


def _answer(observation: str) -> str:
    return f"{_ANSWER}\n\n{observation.strip()}"


def _answer_plain(observation: str) -> str:
    return f"{_answer(observation)}\n\nYour action:"


def _verbatim(observation: str) -> str:
    return observation


TEMPLATES: Final[Mapping[str, PromptTemplate]] = {
    template.name: template
    for template in (
        # Plain text, for base models.
        PromptTemplate("default", _default, extract_boxed),
        # ChatML of the Qwen family: games between players, tasks for one, and opened thinking.
        PromptTemplate("qwen3-zs", _qwen3(_ZERO_SUM), extract_boxed),
        PromptTemplate("qwen3-sp", _qwen3(_SOLO), extract_boxed),
        PromptTemplate("qwen3-reasoning", _qwen3_reasoning, _extract_boxed_after_thought),
        PromptTemplate("gemma3-zs", _gemma3, extract_boxed),
        PromptTemplate("llama-instruct-zs", _llama_instruct, extract_boxed),
        # The move at once, without reasoning: its probability can be read (docs/evidence/exploitability.md).
        PromptTemplate("answer", _answer_plain, _extract_first_bracketed),
        PromptTemplate("answer-chat", _answer, _extract_first_bracketed, chat=True),
        # The tokenizer's own chat template, for any instruction-tuned model.
        PromptTemplate("chat", _chat, extract_boxed, chat=True),
        # The observation and nothing else.
        PromptTemplate("observation", _verbatim, extract_bracketed),
        *(PromptTemplate(name, wording, extract_cell) for name, wording in BOARD_TEMPLATES.items()),
    )
}
"""Template name to template."""


def get_template(name: str) -> PromptTemplate:
    """Return the template of that name, or the extension that it refers to.

    Raises:
        ConfigError: there is none, or the extension is no template; lists those there are.
    """
    template = TEMPLATES.get(name)
    return template if template is not None else _own_template(name)


@cache
def _own_template(name: str) -> PromptTemplate:
    kind = KINDS["template"]
    reference = Reference.parse(name, kind.key)
    if not reference.names_code and reference.target not in entry_points_of(kind):
        known = ", ".join(sorted(TEMPLATES))
        meant = did_you_mean(name, TEMPLATES, after=" ")
        raise ConfigError(
            f"unknown prompt template {name!r}; {meant}expected one of {known}, or an extension"
        )
    found = build(kind, name, kind.key)
    if isinstance(found, PromptTemplate):
        return found
    wording = getattr(found, "format", found)
    extract = getattr(found, "extract", extract_boxed)
    if not callable(wording) or not callable(extract):
        raise refuse(kind, reference, kind.key, f"is a {type(found).__name__}")
    chat, spellings = bool(getattr(found, "chat", False)), getattr(found, "spellings", {})
    return PromptTemplate(name, wording, extract, chat=chat, spellings=spellings)
