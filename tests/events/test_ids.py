"""Deterministic ids."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.events import event_id, game_id, step_id, trajectory_id

NAMESPACE = uuid.UUID("6f0b7a52-3f0e-5a9d-9d53-2f6a3b1c7e11")
text = st.text(st.characters(exclude_categories=["Cs"]))


@given(text, text, st.lists(st.one_of(text, st.integers())))
def test_an_id_is_a_version_5_uuid_of_its_cause(run: str, kind: str, key: list[str | int]) -> None:
    name = "\x1f".join([run, kind, *map(str, key)])
    assert event_id(run, kind, *key) == str(uuid.uuid5(NAMESPACE, name))


def test_ids_are_stable() -> None:
    # Written down once: these are in every log there is.
    game = game_id("run-golden", "train", 7)
    assert game == "76c2eeff-10e0-57ca-be86-96ed7db2cb75"
    assert step_id(trajectory_id(game, 0), 0) == "ae23b44d-ab4c-53ba-b0f1-e88b90b4be69"
    assert trajectory_id(game, 0) != trajectory_id(game, 1)
    assert event_id("a", "b/c") != event_id("a/b", "c")
