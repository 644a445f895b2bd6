"""Events changed at random: decoding and every fold give a typed error or go on, and nothing else."""

import contextlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import changed_bytes, changed_document, refusal
from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.algorithms.collapse import GameTally
from unstable_stream.archive.batch import build_batch
from unstable_stream.errors import EventError
from unstable_stream.events import Event, GameOutcome, LearnerUpdate, Step, decode_event, encode_event
from unstable_stream.history.proofs.balance import balance
from unstable_stream.history.proofs.ledger import Ledger
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.topics import TOPICS_DIR
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.history import RunHistory
from unstable_stream.services.streams.processors import rating_processor, reward_processor
from unstable_stream.services.tracking.prometheus import MonitorState
from unstable_stream.services.workers.game_schedule import GameSchedule

_FILES = sorted((TOPICS_DIR / "golden").glob("*.json"))
GOLDEN = {path.stem: path.read_bytes().rstrip(b"\n") for path in _FILES}
RUN = "run-golden"

golden_names = st.sampled_from(sorted(GOLDEN))
changed_events = golden_names.flatmap(
    lambda name: changed_document(json.loads(GOLDEN[name])).map(lambda body: json.dumps(body).encode())
)


@given(data=golden_names.flatmap(lambda name: changed_bytes(GOLDEN[name])))
def test_changed_bytes_give_an_event_or_a_typed_error(data: bytes) -> None:
    def decode_and_back() -> None:
        event = decode_event(data)
        assert decode_event(encode_event(event)) == event

    assert refusal(EventError, decode_and_back) != "no reason given"


def events_of(bodies: list[bytes]) -> list[Event]:
    events: list[Event] = []
    for body in bodies:
        with contextlib.suppress(EventError):
            events.append(decode_event(body))
    return events


def stored(body: bytes, topic: str, offset: int = 0) -> StoredRecord:
    return StoredRecord(topic, 0, offset, RUN, body, {}, 1_700_000_000_000)


CONFIG = parse_config(
    {
        "model": "tiny-player",
        "train_envs": [{"env_id": "TicTacToe-v0-train"}],
        "evaluation": {"opponents": ["random-legal"]},
        "model_pool": {"sample_mode": "random"},
        "rewards": {"step": [{"type": "RewardForFormat", "reward": 1.0}, "Discount(gamma=0.9)"]},
    }
)


def each(fold: Callable[[Any], Any], events: Iterable[Any]) -> None:
    """Fold events; an impossible one may be refused by the error that sets its record aside."""
    for event in events:
        with contextlib.suppress(EventError):
            fold(event)


def fold_rewards_and_ratings(events: list[Event]) -> None:
    for processor in (
        reward_processor(RUN, CONFIG.rewards.final, CONFIG.rewards.step),
        rating_processor(RUN),
    ):
        each(processor.handle, events)
        assert json.loads(json.dumps(processor.state())) is not None


def fold_schedule(events: list[Event]) -> None:
    schedule = GameSchedule(RUN, CONFIG)
    each(schedule.apply, events)
    schedule.next_games(0)


def fold_buffer_and_tally(events: list[Event]) -> None:
    buffer, tally = StepBuffer(100, max_staleness=4), GameTally()
    for event in events:
        if isinstance(event, Step):
            buffer.add(event)
        elif isinstance(event, LearnerUpdate):
            buffer.apply(event)
        elif isinstance(event, GameOutcome):
            tally.add(event)
    if buffer.available(1):
        buffer.get_batch(1, 1)
    tally.take()


def fold_runs(events: list[Event]) -> RunHistory:
    history = RunHistory()
    for event in events:
        history.apply(event)
    for run in history.newest_first():
        assert (run.name, run.state, run.updates) is not None
    return history


def fold_ledger(events: list[Event]) -> None:
    runs = fold_runs(events).runs
    if RUN in runs:
        ledger = Ledger(runs[RUN])
        for offset, event in enumerate(events):
            ledger.apply(event, 0, offset)
        assert str(balance(ledger))


def fold_archive(events: list[Event]) -> None:
    records = [stored(encode_event(event), event.TOPIC, offset) for offset, event in enumerate(events)]
    state = MonitorState()
    for record in records:
        state.apply(record)
    batch = build_batch(records, lambda ids: [True] * len(ids), "log")
    assert batch.tables["events"].num_rows == len(records)


FOLDS = (fold_rewards_and_ratings, fold_schedule, fold_buffer_and_tally, fold_ledger, fold_archive)


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.__name__)
@settings(max_examples=60, deadline=None)
@given(bodies=st.lists(changed_events, min_size=1, max_size=4))
def test_folds_take_any_event_that_decodes(fold: Callable[[list[Event]], None], bodies: list[bytes]) -> None:
    # All events as they were recorded, in between the changed ones, so that changed ones meet a state.
    events = events_of([*GOLDEN.values(), *bodies, *GOLDEN.values()])
    fold(events)


@pytest.mark.parametrize("number", [-(2**63), -1, 2**31, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        *(("step.v1", "turn_index"), ("learner-update.v1", "update"), ("checkpoint.v1", "iteration")),
        *((f"game-{what}.v1", "game_index") for what in ("started", "outcome")),
        *(("run-started.v1", field) for field in ("parent_update", "parent_games")),
    ],
)
def test_no_number_makes_the_books_endless(name: str, field: str, number: int) -> None:
    body = json.dumps({**json.loads(GOLDEN[name]), field: number}).encode()
    fold_ledger(events_of([body, *(GOLDEN[other] for other in GOLDEN if other != name)]))
