"""Whatever comes from outside is storable after one pass, and a second pass changes nothing."""

import enum
import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import made
from unstable_stream.events import GameAbandoned, decode_event, encode_event, storable_text, storable_values

ANY_TEXT = st.text(st.characters(codec=None, categories=None))
"""Surrogates, NUL and control characters among it."""
ANY_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(ANY_TEXT | st.integers() | st.none(), inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=8,
)


class Colour(enum.StrEnum):
    RED = "red"


@given(ANY_TEXT)
def test_any_text_is_storable_after_one_pass(text: str) -> None:
    once = storable_text(text)
    assert decode_event(encode_event(_abandoned(once))) == _abandoned(once)
    assert storable_text(once) == once
    assert len(once) <= len(text)


@given(st.text())
def test_valid_text_is_left_alone(text: str) -> None:
    assert storable_text(text) == text


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("cut \ud83d", "cut \ufffd"),
        ("\ude00 late", "\ufffd late"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("é\ud83d\ud83d\ude00", "é\ufffd\U0001f600"),
        ("\x00\x1b[31m\x7f", "\x00\x1b[31m\x7f"),
        (Colour.RED, "red"),
    ],
)
def test_halves_of_a_pair_are_joined_or_replaced(text: str, stored: str) -> None:
    assert storable_text(text) == stored
    assert type(storable_text(text)) is str


@settings(max_examples=40)
@given(st.dictionaries(ANY_TEXT | st.integers() | st.none(), ANY_VALUES, max_size=4))
def test_any_values_are_storable_after_one_pass(values: dict[Any, Any]) -> None:
    once = storable_values(values)
    assert msgspec.json.decode(msgspec.json.encode(once)) == once
    assert json.loads(json.dumps(once, allow_nan=False)) == once
    assert storable_values(once) == once


def _nested(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


def _cycle() -> Any:
    value: list[Any] = []
    value += [value, value]
    return value


@pytest.mark.parametrize(
    "made",
    [
        lambda: _nested(5_000),
        _cycle,
        lambda: 2**64,
        lambda: -(10**5_000),
        lambda: np.float32(1.5),
        lambda: np.zeros(2),
        lambda: {"a": {1: 2}},
        lambda: {"a": [b"bytes"]},
        lambda: {1, 2},
        object,
    ],
)
def test_what_has_no_form_in_json_is_left_out(made: Callable[[], Any]) -> None:
    assert storable_values({"left out": made(), "kept": [1, {"a": "\ud800"}]}) == {
        "kept": [1, {"a": "\ufffd"}]
    }


def test_numbers_are_plain_and_finite() -> None:
    numpy = np.float64(0.5)
    values = {"nan": float("nan"), "numpy": numpy, "list": [float("-inf")], "large": 2**64 - 1, 7: 1}
    stored = storable_values(values)
    assert stored == {"nan": None, "numpy": 0.5, "list": [None], "large": 2**64 - 1, "7": 1}
    assert type(stored["numpy"]) is float


@pytest.mark.parametrize("values", [None, 3, ["a"], "text"])
def test_what_is_no_mapping_has_no_values(values: object) -> None:
    assert storable_values(values) == {}


def _abandoned(reason: str) -> GameAbandoned:
    return made(GameAbandoned, reason=reason)
