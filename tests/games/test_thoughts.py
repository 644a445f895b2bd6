"""What a model only thought of is not its answer, in every template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.games.templates import TEMPLATES, after_thoughts, get_template, open_thought

PARTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<reasoning>", "</THINKING>", "[1]", r"\boxed{2}", "so", "\n"]),
    max_size=8,
).map("".join)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("take [4]", "take [4]"),
        ("<think>[1]?</think>[4]", "[4]"),
        ("[1]? no.\n</think>\n\n[4]", "\n\n[4]"),
        ("<think>a</think>[1]<think>b</think>[2]", "[2]"),
        ("<think>never [4]", ""),
        ("[4] <think>or [1]", "[4] "),
        ("<Thinking>[1]</Thinking>[4]", "[4]"),
        ("<think>[1]</think>", ""),
        ("<think>a<think>b</think>[4]", "[4]"),
        ("a <thinking about it", "a <thinking about it"),
    ],
)
def test_the_answer_follows_the_thoughts(text: str, answer: str) -> None:
    assert after_thoughts(text) == answer


@given(PARTS)
def test_an_answer_has_no_thoughts_in_it(text: str) -> None:
    answer = after_thoughts(text)
    assert answer in text
    assert after_thoughts(answer) == answer
    assert open_thought(answer) == ""


@pytest.mark.parametrize(
    ("prompt", "mark"),
    [
        ("<think>\n", "<think>"),
        ("<think>\n\n</think>\n\n", ""),
        ("board", ""),
        ("</think>a<reasoning>", "<reasoning>"),
    ],
)
def test_a_prompt_may_leave_a_thought_open(prompt: str, mark: str) -> None:
    assert open_thought(prompt) == mark


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_no_template_plays_what_was_only_thought_of(name: str) -> None:
    extract = get_template(name).extract
    thought = r"<think>maybe [1], or \boxed{2}, or [3]"
    assert extract(thought) == ("", {"correct_answer_format": False})
    assert extract(rf"{thought}</think> [5] \boxed{{5}}") == ("[5]", {"correct_answer_format": True})
    assert extract(f"{thought}</think> pass") == ("pass", {"correct_answer_format": False})


def test_a_thought_that_the_prompt_opened_must_end_before_the_answer() -> None:
    template = get_template("qwen3-reasoning")
    assert open_thought(template.format("board")) == "<think>"
    assert template.extract(r"I take \boxed{1}, so \boxed{4}") == ("", {"correct_answer_format": False})
    assert template.extract(r"I take \boxed{1}</think>\boxed{4}") == ("[4]", {"correct_answer_format": True})
