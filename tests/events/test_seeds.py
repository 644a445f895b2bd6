"""SplitMix64 against its published sequence and against plain integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.events.seeds import SPLIT_MIX_GAMMA, split_mix, split_mix_array

_WORDS = st.integers(0, 2**64 - 1)


def test_the_published_sequence() -> None:
    """Vigna's C program, seeded with 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [split_mix(1234567 + place * SPLIT_MIX_GAMMA) for place in range(4)] == published
    assert split_mix(0) == 0xE220A8397B1DCDAF


@given(st.lists(_WORDS, max_size=50))
def test_the_array_form_gives_what_the_scalar_form_gives(words: list[int]) -> None:
    assert split_mix_array(np.array(words, dtype=np.uint64)).tolist() == [split_mix(word) for word in words]


@given(st.integers(-(2**70), 2**70))
def test_only_the_lowest_64_bits_of_a_state_count(state: int) -> None:
    assert split_mix(state) == split_mix(state % 2**64)
