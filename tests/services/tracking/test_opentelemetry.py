"""The spans of a recorded run, as an OTLP collector receives them."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.archive.history import made_up_run
from tests.builders import made
from tests.places import append
from tests.services.tracking.receiver import Received, receiver
from unstable_stream.api.place import Place
from unstable_stream.api.replaying import track_run
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import (
    GameOutcome,
    LearnerUpdate,
    RunFinished,
    RunResumed,
    RunStarted,
    Step,
    Trajectory,
    unpack_tokens,
)
from unstable_stream.history.hindsight import track as tracking
from unstable_stream.runs.config import parse_config
from unstable_stream.services.launch.preflight import check_config
from unstable_stream.services.tracking.spans import SpanFold

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
pytestmark = pytest.mark.longer

RUN = "run-a"
EVENTS = made_up_run()


def spans_in(received: Received) -> list[Any]:
    """The spans that were posted, decoded by OpenTelemetry's own messages."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans = []
    for path, body in received.posted:
        assert path == "/v1/traces"
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for of_scope in of_resource.scope_spans:
                spans += of_scope.spans
    return spans


def attributes(span: Any) -> dict[str, Any]:
    values = {item.key: item.value for item in span.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


def only(kind: type[Any]) -> list[Any]:
    return [event for event in EVENTS if isinstance(event, kind)]


def sent(place: Place, directory: Path, times: int = 1, **arguments: Any) -> list[Any]:
    """What one back-fill sends, or several to one address."""
    with receiver() as received:
        for _ in range(times):
            track_run(place, RUN, {"type": "otel", "endpoint": received.url, **arguments}, directory)
    return spans_in(received)


@pytest.fixture(scope="module")
def spans(tracked: Place, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return sent(tracked, tmp_path_factory.mktemp("otel"))


def test_each_span_is_part_of_one_of_its_trace_and_lies_within_it(spans: list[Any]) -> None:
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    assert len(by_id) == len({span.span_id for span in spans}) == len(spans)
    roots = [span for span in spans if not span.parent_span_id]
    assert Counter(span.name.split()[0] for span in roots) == {"game": len(only(GameOutcome)), "run": 1}
    parents = {"turn": "game", "text_completion": "turn", "reward": "turn", "update": "run"}
    for span in spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if span.parent_span_id:
            parent = by_id[span.trace_id, span.parent_span_id]
            kind = span.name.split()[0]
            assert parent.name.split()[0] == parents[kind]
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            if kind != "reward":  # which is known at the end of the game
                assert span.end_time_unix_nano <= parent.end_time_unix_nano


def test_games_turns_answers_rewards_and_updates_are_all_there(spans: list[Any]) -> None:
    turns = [turn for trajectory in only(Trajectory) for turn in trajectory.turns]
    counts = {
        "game": len(only(GameOutcome)),
        "turn": sum(outcome.num_turns for outcome in only(GameOutcome)),
        "text_completion": len(turns),
        "reward": len(only(Step)),
        "update": 6,
        "run": 1,
    }
    assert Counter(span.name.split()[0] for span in spans) == counts
    answers = [attributes(span) for span in spans if span.name.startswith("text_completion")]
    used = sum(answer["gen_ai.usage.output_tokens"] for answer in answers)
    assert used == sum(len(unpack_tokens(turn.completion_token_ids)) for turn in turns)
    asked = sum(answer["gen_ai.usage.input_tokens"] for answer in answers)
    assert asked == sum(len(unpack_tokens(turn.prompt_token_ids)) for turn in turns)
    rewards = sorted(attributes(span)["rl.reward"] for span in spans if span.name == "reward")
    assert rewards == sorted(step.reward for step in only(Step))


def test_an_update_links_to_the_games_of_its_batch(spans: list[Any]) -> None:
    games = {(s.trace_id, s.span_id): attributes(s)["rl.game_id"] for s in spans if s.name[:5] == "game "}
    game_of = {step.step_id: step.game_id for step in only(Step)}
    links = {
        attributes(span)["rl.update"]: {
            games[link.trace_id, link.span_id]: attributes(link)["rl.steps_trained"] for link in span.links
        }
        for span in spans
        if span.name.startswith("update")
    }
    assert links == {
        update.update: Counter(game_of[step] for step in update.step_ids) for update in only(LearnerUpdate)
    }


def test_names_are_those_of_the_conventions(spans: list[Any]) -> None:
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {key for span in spans for key in attributes(span)}
    assert {key for key in used if not key.startswith("rl.")} <= known
    operations = {value.value for value in gen_ai_attributes.GenAiOperationNameValues}
    (operation,) = {
        attributes(span).get("gen_ai.operation.name") for span in spans if "completion" in span.name
    }
    assert operation in operations


def identities(spans: Iterable[Any]) -> set[bytes]:
    return {span.SerializeToString(deterministic=True) for span in spans}


def test_a_second_back_fill_sends_nothing_and_one_elsewhere_the_same(
    tracked: Place, spans: list[Any], tmp_path: Path
) -> None:
    for where in (tmp_path, tmp_path / "elsewhere"):
        again = sent(tracked, where, times=2)
        assert identities(again) == identities(spans)
        assert len(again) == len(spans)


def test_texts_are_sent_only_if_asked_for(tracked: Place, spans: list[Any], tmp_path: Path) -> None:
    with_texts = sent(tracked, tmp_path, content=True)
    messages = "gen_ai.output.messages"
    told = [attributes(span)[messages] for span in with_texts if messages in attributes(span)]
    assert len(told) == sum(len(trajectory.turns) for trajectory in only(Trajectory))
    assert "I take" in told[0]
    assert not any(messages in attributes(span) for span in spans)


async def test_following_a_live_run_sends_what_a_back_fill_does(
    spans: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_LOOK_EVERY_S", 0.01)
    place = Place.at(tmp_path / "data")
    await asyncio.to_thread(append, place.data.root, EVENTS[:80])
    with receiver() as received:
        to = {"type": "otel", "endpoint": received.url}
        following = asyncio.ensure_future(
            asyncio.to_thread(track_run, place, RUN, to, tmp_path / "out", follow=True)
        )
        async with asyncio.timeout(60):
            while not received.posted:
                await asyncio.sleep(0)
            await asyncio.to_thread(append, place.data.root, EVENTS[80:])
            done = await following
    assert (done.update, done.known) == (6, 0)
    assert identities(spans_in(received)) == identities(spans)
    assert len(spans_in(received)) == len(spans)


def test_a_part_that_was_killed_ends_where_it_was_last_heard_of() -> None:
    began, *_ = only(RunStarted)
    first, second = only(LearnerUpdate)[:2]
    resumed = made(RunResumed, run_id=RUN, resumption=1, occurred_at_ms=second.occurred_at_ms - 1)
    end = made(RunFinished, run_id=RUN, outcome="stopped", occurred_at_ms=second.occurred_at_ms + 5)
    fold = SpanFold()
    pieces = [piece for event in (began, first, resumed, second, end) for piece in fold.handle(event)]
    update, killed, later, stopped = (span for piece in pieces for span in piece.content)
    assert (killed.start_ms, killed.end_ms) == (began.occurred_at_ms, first.occurred_at_ms)
    assert "killed" in killed.error
    assert (stopped.start_ms, stopped.end_ms) == (resumed.occurred_at_ms, end.occurred_at_ms)
    assert stopped.error == ""
    assert (update.parent, later.parent) == (killed.key, stopped.key)


def test_a_game_whose_trajectory_never_came_is_sent_when_the_run_is_over() -> None:
    fold = SpanFold()
    outcome = only(GameOutcome)[0]
    assert fold.handle(only(RunStarted)[0]) == fold.handle(outcome) == fold.rest() == []
    fold.handle(only(RunFinished)[0])
    ((_, spans),) = fold.rest()
    assert [span.name for span in spans[:2]] == [f"game {outcome.env_id}", "turn 0"]
    assert len(spans) == 1 + outcome.num_turns


@pytest.mark.filterwarnings("ignore")
def test_an_endpoint_that_refuses_is_named_and_nothing_counts_as_sent(tracked: Place, tmp_path: Path) -> None:
    with receiver() as received:
        received.status = 400
        to = {"type": "otel", "endpoint": received.url}
        with pytest.raises(RunError, match=rf"{received.url}/v1/traces does not take spans"):
            track_run(tracked, RUN, to, tmp_path)
        received.status = 302
        with pytest.raises(RunError, match="does not take spans"):
            track_run(tracked, RUN, to, tmp_path)
        received.status = 400
        login = {"type": "otel", "endpoint": received.url.replace("://", "://me:secret@")}
        with pytest.raises(RunError, match=r"otel: http://…@127\.0\.0\.1:.* does not take spans"):
            track_run(tracked, RUN, login, tmp_path)
        received.status = 200
        assert track_run(tracked, RUN, to, tmp_path).known == 0


def test_a_run_does_not_start_with_a_tracker_that_takes_events() -> None:
    env = {"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}
    settings = {"model": "tiny-player", "train_envs": [env], "trackers": ["otel"]}
    with pytest.raises(ConfigError, match=r"trackers.*: otel takes events.*track RUN --to otel --follow"):
        check_config(parse_config(settings))


def test_a_run_does_not_record_the_login_of_a_tracker() -> None:
    env = {"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}
    tracker = "jsonl(directory='http://me:secret@host')"
    settings = {"model": "tiny-player", "train_envs": [env], "trackers": [tracker]}
    with pytest.raises(ConfigError, match=r"trackers.*: jsonl is given a password in an address") as told:
        check_config(parse_config(settings))
    assert "secret" not in str(told.value)
