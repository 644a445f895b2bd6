"""Answers that say an action: made anew where no model of the run's own gave them."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.builders import made
from unstable_stream.errors import ConfigError
from unstable_stream.events import Turn
from unstable_stream.games.templates import get_template
from unstable_stream.inference.tokenizer import FileTokenizer
from unstable_stream.runs.config import parse_config
from unstable_stream.services.workers.imitation import StepMaker

END = 0


class _Letters:
    """A tokenizer of letters."""

    answer_end = END

    def encode_answer(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token) for token in tokens if token != END)


def answer(template: str, action: str, written: str | None = None, most: int = 40) -> str:
    tree: dict[str, Any] = {"model": "m", "train_envs": [{"env_id": "X-v0", "num_players": 2}]}
    config = parse_config({**tree, "sampling": {"max_tokens": most}})
    maker = StepMaker(config, cast("FileTokenizer", _Letters()), {}, {}, {})
    turn = None if written is None else made(Turn, completion=written)
    tokens = maker._answer(get_template(template), action, turn, "turn 0")
    assert tokens[-1] == END or len(tokens) == most
    return _Letters().decode(tokens)


@pytest.mark.parametrize(
    ("template", "action", "said"),
    [
        ("tictactoe-board", "[4]", "[4]"),
        ("answer", "[Fold]", "[Fold]"),
        ("default", "[4]", "\\boxed{4}"),
        ("qwen3-reasoning", "[4]", "</think>\n\n\\boxed{4}"),
        ("default", "I accept the offer", "I accept the offer"),
        ("default", "[a] and [b]", "\\boxed{[a] and [b]}"),
    ],
)
def test_an_action_is_said_as_the_template_asks_for(template: str, action: str, said: str) -> None:
    assert answer(template, action) == said


def test_what_another_model_wrote_is_kept_if_it_is_read_as_its_action() -> None:
    thoughts = "The middle. \\boxed{4}"
    assert answer("default", "[4]", thoughts) == thoughts
    assert answer("answer", "[4]", thoughts) == "[4]"


def test_the_end_is_left_out_where_the_limit_ends_the_answer() -> None:
    assert answer("answer", "[4]", most=3) == "[4]"
    with pytest.raises(ConfigError, match=r"action '\[4\]' cannot be said in sampling.max_tokens = 2 tokens"):
        answer("answer", "[4]", most=2)
