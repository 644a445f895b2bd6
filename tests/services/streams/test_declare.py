"""What may be declared as a plug-in, and what one is told at import instead of at the millionth event."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from tests.archive.history import made_up_run
from unstable_stream import Context, consumer
from unstable_stream.errors import PluginError
from unstable_stream.events import Event, GameOutcome, Metrics, Trajectory, event_id
from unstable_stream.services.streams.plugins import Plugin, Position, StateCodec, metrics_of


@consumer
def games(event: GameOutcome, context: Context) -> None:
    """Counts nothing yet.

    More about it.
    """
    context.emit("moves", event.num_turns)


def test_a_function_needs_no_more_than_its_annotation() -> None:
    assert isinstance(games, Plugin)
    assert (games.name, games.topics, games.event_types) == ("games", ("game-outcomes",), (GameOutcome,))
    assert games.doc == "Counts nothing yet."
    assert games.source == "plugin/games"


def test_a_union_is_given_both_and_nothing_else() -> None:
    @consumer(name="both")
    def both(event: Trajectory | GameOutcome, context: Context) -> None: ...

    assert both.topics == ("game-outcomes", "trajectories")
    run = made_up_run()
    wanted = [event for event in run if both.wants(event)]
    assert {type(event) for event in wanted} == {Trajectory, GameOutcome}
    assert len(wanted) == 2 * 38


def test_without_annotation_it_is_given_everything_but_its_own_metrics() -> None:
    @consumer(topics=["metrics"], name="echo")
    def echo(event, context):  # type: ignore[no-untyped-def]
        context.emit("again", 1.0)

    theirs = Metrics(event_id="a", run_id="r", occurred_at_ms=1, source="engine-0")
    (own,) = metrics_of(echo, [theirs])
    assert own.source == "plugin/echo"
    assert metrics_of(echo, [own]) == []


def takes_one(event: Event) -> None: ...


def takes_text(event: str, context: Context) -> None: ...


def takes_all(event: Event, context: Context) -> None: ...


def takes_games(event: GameOutcome, context: Context) -> None: ...


def takes_unknown(event: "NowhereDefined", context: Context) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: consumer(topics=["games"])(takes_one), r"expected two parameters.*found 1"),
        (lambda: consumer(topics=["games"])(takes_text), r"annotated <class 'str'>; expected an event class"),
        (lambda: consumer(takes_all), r"name the topics.*trajectories"),
        (lambda: consumer(topics=["steps"])(takes_games), r"GameOutcome is on topic 'game-outcomes'"),
        (lambda: consumer(topics=["steps"])(takes_unknown), r"NowhereDefined.*not only for the type checker"),
        (lambda: consumer(topics="games")(takes_all), r"expected a list: \['games'\]"),
        (lambda: consumer(topics=["games"], name="a/b")(takes_all), r"name 'a/b'"),
        (lambda: consumer(topics=["games"], retries=-1)(takes_all), r"must be 0 or more"),
        (lambda: consumer(topics=["games"], state=Counter)(takes_all), r"Counter"),
    ],
)
def test_what_could_not_work_is_refused(declare: Callable[[], object], says: str) -> None:
    with pytest.raises(PluginError, match=says):
        declare()


# -- metrics --------------------------------------------------------------------------------------


def context_of(event: Event, **named: Any) -> Context:
    return Context("mine", event, Position("game-outcomes", 0, 7), **named)


def an_outcome() -> GameOutcome:
    return next(event for event in made_up_run() if isinstance(event, GameOutcome))


def test_a_metric_has_an_id_that_follows_from_plugin_event_and_name() -> None:
    outcome = an_outcome()
    context = context_of(outcome)
    context.emit("x", 1, update=3)
    context.emit("y", 2.5)
    first, second = context.emitted
    assert first.event_id == event_id(outcome.run_id, "metrics", "plugin/mine", outcome.event_id, "x")
    assert first.event_id != second.event_id
    assert (first.values, first.update, first.source) == ({"x": 1.0}, 3, "plugin/mine")
    assert (first.run_id, first.occurred_at_ms) == (outcome.run_id, outcome.occurred_at_ms)
    again = context_of(outcome)
    again.emit("x", 1, update=3)
    assert again.emitted == [first]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("y", math.nan, "expected a finite number"),
        ("y", math.inf, "expected a finite number"),
        ("x", 2.0, "emitted for this event before"),
    ],
)
def test_a_metric_is_one_finite_number_for_an_event(name: str, value: float, says: str) -> None:
    context = context_of(an_outcome())
    context.emit("x", 1)
    with pytest.raises(ValueError, match=says):
        context.emit(name, value)


def test_a_plugin_without_state_is_told_how_to_have_one() -> None:
    with pytest.raises(PluginError, match=r"state=dict"):
        _ = context_of(an_outcome()).state


# -- state ----------------------------------------------------------------------------------------


@dataclass
class Typed:
    seen: set[tuple[int, str]] = field(default_factory=set)
    last: Position | None = None


class Struct(msgspec.Struct):
    counts: dict[int, float] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize(
    ("made", "state"),
    [
        (Typed, Typed({(1, "a"), (2, "b")}, Position("t", 0, 3))),
        (Struct, Struct({1: 0.5})),
        (dict, {"a": [1, 2.5, None, True, b"x"], 7: {"deep": {"er": "ü"}}}),
    ],
)
def test_a_state_comes_back_as_it_was(made: Callable[[], Any], state: Any) -> None:
    codec = StateCodec(made, "p")
    assert codec.decode(codec.encode(state)) == state


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"a": [{"b": (1, 2)}]}, r"state\['a'\]\[0\]\['b'\] is of type tuple"),
        ({"a": {1, 2}}, r"state\['a'\] is of type set"),
        ({(1, 2): 3}, r"a key of state is of type tuple"),
        ({"a": 1 << 70}, r"cannot be saved"),
    ],
)
def test_a_plain_state_that_would_come_back_changed_is_refused(state: dict[Any, Any], says: str) -> None:
    with pytest.raises(PluginError, match=says):
        StateCodec(dict, "p").encode(state)


def test_a_saved_state_of_another_declaration_is_refused() -> None:
    saved = StateCodec(dict, "p").encode({"counts": "many"})
    with pytest.raises(PluginError, match=r"does not fit its declaration.*--reset"):
        StateCodec(Struct, "p").decode(saved)
