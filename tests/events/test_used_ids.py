"""Used ids: as exact as a set of all of them, in memory of the games that are not done with."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from unstable_stream.events.id_sets import digest
from unstable_stream.events.used_ids import UsedIds

STEPS = 3
"""Of a game."""


def key(game: int, step: int) -> bytes:
    return digest(f"{game}/{step}".encode())


def of_game(game: int) -> list[bytes]:
    return [key(game, step) for step in range(STEPS)]


games = st.integers(0, 5)
operations = st.one_of(
    st.tuples(st.sampled_from(["add", "unknown", "ask"]), games, st.integers(0, STEPS - 1)),
    st.tuples(st.just("promise"), games, st.just(0)),
    st.tuples(st.sampled_from(["settle", "restore"]), st.just(0), st.just(0)),
)


@given(done=st.lists(operations, max_size=60))
@settings(max_examples=200, deadline=None)
def test_it_knows_just_what_a_set_would_know(done: list[tuple[str, int, int]]) -> None:
    used = UsedIds(by_game=True)
    expected: set[tuple[int, int]] = set()
    for name, game, step in done:
        if name == "add":
            used.add([(key(game, step), game)])
            expected.add((game, step))
        elif name == "unknown":
            used.add_unknown([key(game, step)])
            expected.add((game, step))
        elif name == "ask":
            assert bool(used.among([key(game, step)], [game])) == ((game, step) in expected)
        elif name == "promise":
            used.promise(game, of_game(game))
        elif name == "settle":
            used.settle()
        else:
            used = UsedIds.restored(json.loads(json.dumps(used.state())))
    every = [(game, step) for game in range(6) for step in range(STEPS)]
    found = used.among([key(*each) for each in every], [game for game, _ in every])
    assert found == {key(*each) for each in expected}


def test_games_that_are_done_with_are_one_range() -> None:
    used = UsedIds(by_game=True)
    sizes = []
    for game in range(100_000):
        used.promise(game, [] if game % 7 == 0 else of_game(game))  # some games have no trained turn
        if game >= 10 and (game - 10) % 7:
            used.add([(each, game - 10) for each in of_game(game - 10)])
        if game in (1_000, 99_999):
            sizes.append(used.entries())
    assert sizes[1] <= sizes[0] + 2
    assert used.among([key(1, 0), key(99_999, 0)], [1, 99_999]) == {key(1, 0)}


def test_without_outcomes_every_id_is_kept() -> None:
    used = UsedIds()
    used.add((each, game) for game in range(10) for each in of_game(game))
    assert used.entries() == 10 * STEPS
    assert used.among(of_game(3), [3] * STEPS) == set(of_game(3))
