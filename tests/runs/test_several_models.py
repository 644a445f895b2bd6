"""What readers make of a run that trains several models: counts, forks, metrics, ratings, the view."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import made
from tests.services.workers.test_game_schedule import RUN, checkpoint, config, update
from tests.services.workers.test_several_models import SEATS
from unstable_stream.algorithms.rolling_metrics import MetricsProcessor
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import Event, GameOutcome, LearnerUpdate, RunStarted, SeatResult, event_id
from unstable_stream.history.hindsight.collapse import find_collapse
from unstable_stream.history.hindsight.offline import load_offline_config
from unstable_stream.history.proofs.balance import balance
from unstable_stream.history.proofs.ledger import Ledger
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.model_pool.ratings import RatingProcessor
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.fork import Fork, check_fork, find_fork
from unstable_stream.runs.history import RunStatus
from unstable_stream.runs.resume import check_resumable
from unstable_stream.runs.run_view import Matchup, RunView

SETTINGS = config(trained_models=SEATS, learner={"iterations": 3})
POINT = Fork(RUN, update=2, games=0, checkpoints=())


def history() -> list[Event]:
    """Return three updates of the first model and two of the second, each with its checkpoint."""
    events: list[Event] = [made(RunStarted, run_id=RUN, config=SETTINGS.model_dump(mode="json"))]
    for model, updates in (("first", 3), ("second", 2)):
        events.append(checkpoint(0, model))
        for number in range(1, updates + 1):
            uid = f"ckpt-{model}-{number:06d}"
            trained = msgspec.structs.replace(update(number, 1, model=model), model_uid=uid)
            events += [trained, checkpoint(number, model)]
    return events


def test_updates_are_counted_model_by_model() -> None:
    status = RunStatus(RUN)
    for event in history():
        status.apply(event)
    assert status.updates == 5


def problems(events: Sequence[Event]) -> list[str]:
    status, (began, *others) = RunStatus(RUN), events
    status.apply(began)
    ledger = Ledger(status, steps_kept=False)
    for offset, event in enumerate(others):
        ledger.apply(event, 0, offset)
    return list(balance(ledger).problems)


def test_the_audit_misses_what_one_model_lacks() -> None:
    def is_update(event: Event, number: int) -> bool:
        return isinstance(event, LearnerUpdate) and (event.model, event.update) == ("second", number)

    assert problems(history()) == []
    assert problems([event for event in history() if not is_update(event, 1)]) == [
        "update left out: there is no update second/1, but later ones",
        "checkpoint without update: no update made checkpoint ckpt-second-000001",
    ]
    wrong = [
        msgspec.structs.replace(event, model_uid="ckpt-first-000002") if is_update(event, 2) else event
        for event in history()
    ]
    assert problems(wrong) == ["wrong checkpoint: update second/2 names checkpoint ckpt-first-000002"]
    twice = msgspec.structs.replace(update(2, 1, model="second"), event_id=event_id(RUN, "another"))
    assert any("update second/2 was made before" in problem for problem in problems([*history(), twice]))


async def test_a_fork_begins_after_the_same_update_of_every_model(tmp_path: Path) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite") as log:
        await log.create_topics(list(load_topics().values()))
        await log.append([record_from_event(event) for event in history()])
        fork, _ = await find_fork(log, RUN)
        assert fork.update == 2
        assert [event.model_uid for event in fork.chosen] == ["ckpt-first-000002", "ckpt-second-000002"]
        taken = fork.checkpoints_of("forked", 9)
        assert len({event.event_id for event in taken}) == len(taken) == 6
        with pytest.raises(RunError, match="no checkpoint of update 3; it has those of 0, 1, 2"):
            await find_fork(log, RUN, 3)

        one, _ = await find_fork(log, RUN, model="first", to_train=False)
        assert (one.name, one.update) == (f"{RUN}@first/3", 3)
        assert {event.model for event in one.checkpoints} == {"first"}
        with pytest.raises(RunError, match=f"trains first, second: name one of them, e.g. {RUN}@first"):
            await find_fork(log, RUN, to_train=False)
        with pytest.raises(RunError, match="trains no model 'third'; it trains first, second"):
            await find_fork(log, RUN, model="third", to_train=False)

        assert await find_collapse(log, RUN) == (5, [])


def changed(*overrides: str) -> RunConfig:
    return parse_config(SETTINGS.model_dump(mode="json"), ["learner.iterations=9", *overrides])


@pytest.mark.parametrize("of_learner", [True, False])
def test_what_a_model_began_with_may_move_and_not_change(tmp_path: Path, of_learner: bool) -> None:
    for name, weights in (("first", b"one"), ("copy", b"one"), ("other", b"another")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").write_bytes(weights)

    def begun_from(name: str) -> RunConfig:
        key = "learner" if of_learner else "trained_models.first"
        return changed(*([f"{key}.initial_lora_path={tmp_path / name}"] if name else []))

    begun = begun_from("first")
    check_resumable(begun, begun)
    check_resumable(begun, begun_from("copy"))
    says = r"would change trained_models\.first\.initial_lora_path from .* to "
    for before, after in (("first", "other"), ("first", "nowhere"), ("first", ""), ("", "first")):
        with pytest.raises(ConfigError, match=says):
            check_resumable(begun_from(before), begun_from(after))
    # What is gone cannot be compared here: the learner has the digest that was recorded.
    check_resumable(begun_from("gone"), begun_from("copy"))


def test_a_models_step_size_may_change_when_a_run_goes_on_or_is_forked() -> None:
    slower = changed("trained_models.second.learning_rate=1e-5")
    assert [each.learning_rate for each in slower.trained_models] == [None, 1e-5]
    assert changed("trained_models.1.learning_rate=1e-5") == slower
    check_resumable(SETTINGS, slower)
    check_fork(POINT, SETTINGS, slower)
    elsewhere = changed("trained_models.first.initial_lora_path=moved")
    with pytest.raises(ConfigError, match=r"keeps its parent's trained_models\.first\.initial_lora_path"):
        check_fork(POINT, SETTINGS, elsewhere)


@pytest.mark.parametrize(
    ("models", "change"),
    [
        ('[{name = "first", seats = [1]}, {name = "second"}]', "first.seats"),
        ('[{name = "second", seats = [1]}, {name = "first", seats = [0]}]', "first.place"),
        ('[{name = "first", seats = [0]}, {name = "third"}]', "second"),
        ("[]", "first"),
    ],
)
def test_what_a_model_plays_may_not_change(models: str, change: str) -> None:
    other = changed(f"trained_models={models}")
    with pytest.raises(ConfigError, match=rf"would change .*trained_models\.{change} from "):
        check_resumable(SETTINGS, other)
    with pytest.raises(ConfigError, match=r"keeps its parent's trained_models \(names, seats and env_ids\)"):
        check_fork(POINT, SETTINGS, other)


@pytest.mark.parametrize("name", ["trained_models.third.learning_rate", "trained_models.7.learning_rate"])
def test_an_entry_that_a_list_lacks_is_said(name: str) -> None:
    with pytest.raises(ConfigError, match=r"has no entry '(third|7)'; it has first, second"):
        changed(f"{name}=1.0")
    with pytest.raises(ConfigError, match="name a key of the entry too"):
        changed("trained_models.first=1.0")


def test_a_replay_trains_one_of_them(tmp_path: Path) -> None:
    recorded, path = SETTINGS.model_dump(mode="json"), tmp_path / "changes.toml"
    path.write_text('name = "replayed"')
    with pytest.raises(ConfigError, match="trains first, second, and its steps are replayed to one of them"):
        load_offline_config(recorded, path)
    one = load_offline_config(recorded, path, ['trained_models=[{name = "second"}]'])
    assert one.model_names == ("second",)


def test_metrics_have_the_name_of_their_model() -> None:
    processor = MetricsProcessor(RUN)
    updates = [event for event in history() if isinstance(event, LearnerUpdate)]
    names = [sorted(metrics.values)[1] for event in updates for metrics in processor.handle(event)]
    assert names == ["learner/first/loss"] * 3 + ["learner/second/loss"] * 2
    again = MetricsProcessor(RUN)
    again.load_state(processor.state())
    assert list(again.handle(update(2, 1, model="second"))) == []
    assert len(again.handle(update(3, 1, model="second"))) == 1


def test_a_models_first_rating_is_not_inherited_from_another_model() -> None:
    processor = RatingProcessor(RUN)
    for index in range(5):
        processor.handle(evaluated(index, "ckpt-first-000002"))
    processor.handle(evaluated(5, "ckpt-second-000004", version=4))
    processor.handle(evaluated(6, "ckpt-first-000004", version=4))
    assert processor.skill("ckpt-second-000004").mu < processor.skill("ckpt-first-000004").mu


def test_the_view_tells_them_apart() -> None:
    view = RunView(RUN, SETTINGS)
    for event in history():
        view.apply(event)
    assert (view.update, view.updates) == (2, {"first": 3, "second": 2})
    for index, model in enumerate(("first", "second")):
        view.apply(evaluated(index, f"ckpt-{model}-000002"))
    assert view.matchups() == [
        Matchup("TicTacToe-v0", "random-legal", "first"),
        Matchup("TicTacToe-v0", "random-legal", "second"),
    ]
    assert view.matchups()[0].label == "random-legal by first"
    assert [point for point, _ in view.curve(view.matchups()[1])] == [2]


def evaluated(index: int, uid: str, version: int = 2) -> GameOutcome:
    other: dict[str, Any] = {"kind": "scripted", "policy_version": None, "reward": -1.0, "rank": 1}
    return made(
        GameOutcome,
        run_id=RUN,
        occurred_at_ms=index,
        game_index=index,
        split="eval",
        env_id="TicTacToe-v0",
        seats=(
            made(SeatResult, model_uid=uid, policy_version=version),
            made(SeatResult, seat=1, model_uid="random-legal", **other),
        ),
        evaluated_uid=uid,
    )
