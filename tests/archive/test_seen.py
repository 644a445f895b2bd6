"""The hash set against Python's own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.archive.seen import HashSet

_BATCHES = st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=20)


@given(_BATCHES)
def test_holds_exactly_what_was_added(batches: list[list[int]]) -> None:
    ours = HashSet()
    known: set[int] = set()
    for batch in batches:
        expected = [number in known for number in batch]
        assert ours.contains(np.array(batch, dtype=np.uint64)).tolist() == expected
        ours.add(np.array(batch, dtype=np.uint64))
        known.update(batch)
    everything = np.arange(41, dtype=np.uint64)
    assert ours.contains(everything).tolist() == [number in known for number in range(41)]


def test_levels_stay_few() -> None:
    ours = HashSet()
    for start in range(1000):
        ours.add(np.array([start], dtype=np.uint64))
    assert len(ours) == 1000
    assert len(ours._levels) <= 10
