"""Prompts, and the actions read out of completions."""

import re

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.games.templates import TEMPLATES, extract_boxed, extract_bracketed, get_template

REQUIRED = ("default", "qwen3-zs", "qwen3-sp", "qwen3-reasoning", "gemma3-zs", "llama-instruct-zs", "chat")


@pytest.mark.parametrize(
    ("completion", "action", "found"),
    [
        (r"I take the middle. \boxed{4}", "[4]", True),
        (r"\boxed{[4]}", "[4]", True),
        (r"First \boxed{1}, no: \boxed{2}", "[2]", True),
        (r"\boxed{\text{col {3}}}", r"[\text{col {3}}]", True),
        (r"\boxed{ col 3 }", "[col 3]", True),
        (r"\boxed{2} and then \boxed{3", "[2]", True),
        (r"\boxed{I say [4] please}", "I say [4] please", True),
        (r"\boxed{}", r"\boxed{}", False),
        ("  I play [4] ", "I play [4]", False),
        ("", "", False),
    ],
)
def test_extracts_the_last_box(completion: str, action: str, found: bool) -> None:
    assert extract_boxed(completion) == (action, {"correct_answer_format": found})


def test_many_unclosed_boxes_are_read_quickly() -> None:
    # Quadratic in the number of boxes would take minutes.
    completion = r"\boxed{" * 20_000
    assert extract_boxed(completion) == (completion, {"correct_answer_format": False})


@pytest.mark.parametrize(
    ("completion", "action", "found"),
    [("[1] or [2]", "[2]", True), ("[ 3 ]", "[ 3 ]", True), ("four ", "four", False), ("[]", "[]", False)],
)
def test_extracts_the_last_brackets(completion: str, action: str, found: bool) -> None:
    assert extract_bracketed(completion) == (action, {"correct_answer_format": found})


def test_the_documented_templates_exist() -> None:
    assert set(REQUIRED) <= set(TEMPLATES)
    assert {"simpletak-board", "tictactoe-board"} <= set(TEMPLATES)
    assert all(name == template.name for name, template in TEMPLATES.items())
    assert [name for name, template in TEMPLATES.items() if template.chat] == ["answer-chat", "chat"]


@pytest.mark.parametrize("name", REQUIRED)
def test_templates_hold_the_observation_and_ask_for_a_box(name: str) -> None:
    prompt = get_template(name).format("You are Player 2 of 3.\n[0] [1]")
    assert prompt.count("You are Player 2 of 3.\n[0] [1]") == 1
    assert r"\boxed{}" in prompt
    # Any number of players: nothing may claim two.
    assert re.search(r"\btwo\b|\bopponent\b|2-player", prompt, re.IGNORECASE) is None
    assert get_template(name).extract(r"so</think> \boxed{7}") == ("[7]", {"correct_answer_format": True})


@pytest.mark.parametrize(
    ("name", "begins", "ends"),
    [
        ("qwen3-zs", "<|im_start|>user\n", "<|im_start|>assistant\n"),
        ("qwen3-sp", "<|im_start|>user\n", "<|im_start|>assistant\n"),
        ("qwen3-reasoning", "<|im_start|>system\n", "<|im_start|>assistant\n<think>\n"),
        ("gemma3-zs", "<start_of_turn>user\n", "<start_of_turn>model\n"),
        (
            "llama-instruct-zs",
            "<|start_header_id|>system<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ],
)
def test_markup_opens_the_models_turn(name: str, begins: str, ends: str) -> None:
    prompt = get_template(name).format("board")
    assert prompt.startswith(begins)
    assert prompt.endswith(ends)


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError,
        match=r"unknown prompt template 'qwen3'; did you mean qwen3-zs .*expected one of answer, answer-chat",
    ):
        get_template("qwen3")
