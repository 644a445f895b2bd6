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
    game = game_id("run-a", "train", 7)
    assert game == "4efefed3-41bc-5fd6-8aa8-a54d6bf69128"
    assert (
        len({game, trajectory_id(game, 0), trajectory_id(game, 1), step_id(trajectory_id(game, 0), 0)}) == 4
    )


def test_parts_do_not_run_together() -> None:
    assert event_id("a", "b/c") != event_id("a/b", "c")
