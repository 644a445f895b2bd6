"""Completions of any text: every template returns an action and its feedback."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unstable_stream.errors import GameError
from unstable_stream.games.templates import TEMPLATES, get_template

pieces = st.one_of(
    st.text(max_size=10),
    st.sampled_from(
        ["\\boxed{", "}", "{", "[", "]", "[4]", "\n", "<|im_end|>", "\\", "\x00", "\ud800", "４", "1" * 5000]
    ),
)
completions = st.lists(pieces, max_size=12).map("".join)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@settings(max_examples=100, deadline=None)
@given(observation=completions, completion=completions)
def test_a_template_formats_any_observation_and_reads_any_completion(
    name: str, observation: str, completion: str
) -> None:
    template = get_template(name)
    with contextlib.suppress(GameError):  # a board template names the observation that has no board
        assert isinstance(template.format(observation), str)
    action, feedback = template.extract(completion)
    assert isinstance(action, str)
    assert all(isinstance(value, bool) for value in feedback.values())
