"""What single tokens say, character by character, without a network."""

import pytest

from tests.inference.byte_model import byte_tokenizer
from unstable_stream.errors import ConfigError
from unstable_stream.inference.base_model import token_texts, tokenizer_on_disk
from unstable_stream.inference.tokenizer import FileTokenizer


@pytest.fixture(scope="module")
def of_bytes() -> FileTokenizer:
    """A tokenizer that spells everything in bytes."""
    return FileTokenizer(
        "own", byte_tokenizer(), special_tokens={}, chat_template=None, model_config={}, generation_config={}
    )


def test_a_character_belongs_to_its_last_token(of_bytes: FileTokenizer) -> None:
    assert token_texts(of_bytes, of_bytes.encode("a wörld")) == [*"a w", "", *"örld"]


@pytest.mark.parametrize("text", ["", "hello world", "日本 👍🏽 ok", "x" * 50, "\n\t "])
def test_together_they_are_the_text(of_bytes: FileTokenizer, text: str) -> None:
    assert "".join(token_texts(of_bytes, of_bytes.encode(text))) == text


def test_a_character_cut_in_the_middle_is_shown_as_broken(of_bytes: FileTokenizer) -> None:
    cut = of_bytes.encode("a👍")[:-1]
    assert token_texts(of_bytes, cut) == ["a", "", "", "\ufffd"]


def test_special_tokens_are_shown() -> None:
    tokenizer = tokenizer_on_disk("tiny-player")
    assert tokenizer is not None
    assert token_texts(tokenizer, [31, 1]) == ["[7]", " <end>"]


@pytest.mark.parametrize("name", ["", "/nowhere/at/all", "no-such/model", "not a name"])
def test_a_model_that_is_not_here_has_no_tokenizer(name: str) -> None:
    assert tokenizer_on_disk(name) is None


def test_another_models_token_is_an_error(of_bytes: FileTokenizer) -> None:
    with pytest.raises(ConfigError, match="token -5 is not one"):
        token_texts(of_bytes, [-5])
