"""Sets and tables of ids against Python's own."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.events.id_sets import IndexSet, KeySet, digest, digest_array


def test_a_key_sets_levels_stay_few() -> None:
    ours = KeySet[np.uint64]()
    for start in range(1000):
        ours.add(np.array([start], dtype=np.uint64))
    assert len(ours) == 1000
    assert len(ours._levels) <= 10


@given(st.lists(st.lists(st.integers(0, 300), max_size=30), max_size=10))
def test_a_key_set_of_digests_holds_exactly_what_was_added(batches: list[list[int]]) -> None:
    """Of 300 digests one ends in a zero byte, which NumPy pads with."""
    ours, known = KeySet[np.bytes_](), set[bytes]()
    for batch in batches:
        digests = [digest(str(number).encode()) for number in batch]
        assert ours.contains(digest_array(digests)).tolist() == [each in known for each in digests]
        ours.add(digest_array(digests))
        known.update(digests)
    zero = bytes(15) + b"\0"
    ours.add(digest_array([zero]))
    assert ours.contains(digest_array([zero, bytes(15) + b"\1"])).tolist() == [True, False]


@given(st.lists(st.integers(0, 60)))
def test_the_index_set_against_a_set(indices: list[int]) -> None:
    ours, theirs = IndexSet(), set[int]()
    for index in indices:
        assert ours.add(index) == (index not in theirs)
        theirs.add(index)
    assert len(ours) == len(theirs)
    assert all((index in ours) == (index in theirs) for index in range(62))
    assert [i for start, stop in ours.ranges() for i in range(start, stop)] == sorted(theirs)
    assert all(a[1] < b[0] for a, b in pairwise(ours.ranges()))
    assert IndexSet(ours.ranges()).ranges() == ours.ranges()


@pytest.mark.parametrize("ranges", [[(3, 3)], [(0, 2), (2, 4)], [(5, 6), (0, 1)]])
def test_the_index_set_refuses_ranges_it_would_not_make(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="is empty or not after"):
        IndexSet(ranges)
