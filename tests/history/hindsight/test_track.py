"""The metrics of a recorded run, given to trackers afterwards and while it goes on."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.archive.history import ENV, made_up_run
from tests.places import append, archived
from tests.services.tracking.wandb_file import history_of
from unstable_stream.algorithms.rolling_metrics import MetricsProcessor
from unstable_stream.api.place import Place
from unstable_stream.api.replaying import track_run
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import Metrics, RunFinished
from unstable_stream.history.hindsight import track as tracking
from unstable_stream.services.streams.trackers import Received

pytestmark = pytest.mark.longer

RUN = "run-a"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A data directory with two finished runs, in the log and in the archive."""
    place = Place.at(tmp_path_factory.mktemp("tracked"))
    events = [*made_up_run(), *made_up_run("other")]
    append(place.data.root, events)
    archived(place.data.root, events)
    return place


def expected() -> dict[str, dict[str, float]]:
    """The values by event id, from a fold in memory and the topic."""
    processor, found = MetricsProcessor(RUN), list[Metrics]()
    for event in made_up_run():
        found += [event] if isinstance(event, Metrics) else processor.handle(event)
    return {metrics.event_id: dict(metrics.values) for metrics in (*found, *processor.rest())}


def lines(directory: Path) -> list[dict[str, Any]]:
    path = directory / RUN / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def in_lines(place: Place, directory: Path, **source: Any) -> list[dict[str, Any]]:
    """What the run's metrics are as JSON lines."""
    track_run(place, RUN, "jsonl", directory, **source)
    return lines(directory)


def by_content(values: Sequence[object]) -> list[str]:
    return sorted(json.dumps(each, sort_keys=True) for each in values)


def test_json_lines_have_every_metric_once(place: Place, tmp_path: Path) -> None:
    done = track_run(place, RUN, "jsonl", tmp_path / "out")
    found = lines(tmp_path / "out")
    assert by_content([line["values"] for line in found]) == by_content([*expected().values()])
    assert (done.run_id, done.given, done.known, done.update) == (RUN, len(found), 0, 6)
    assert {line["run_id"] for line in found} == {RUN}
    of_fifth = [line["values"] for line in found if line["step"] == 5]
    (last,) = [values for values in of_fifth if f"collection-{ENV}/trajectories" in values]
    assert last[f"collection-{ENV}/trajectories"] == 24
    assert last[f"collection-{ENV}/win-rate"] == pytest.approx(8 / 24)  # every third game
    assert last[f"collection-{ENV}/reward"] == 0.0
    again = track_run(place, "run-a", "jsonl", tmp_path / "out")
    assert (again.given, again.known) == (0, len(found))
    assert lines(tmp_path / "out") == found


def test_tensorboard_reads_the_same_values(place: Place, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    track_run(place, RUN, "tensorboard", tmp_path / "board")
    events = accumulator.EventAccumulator(str(tmp_path / "board" / RUN))
    events.Reload()
    told = in_lines(place, tmp_path / "lines")
    names = {name for line in told for name in line["values"]}
    assert set(events.Tags()["scalars"]) == names
    for line in told:
        for name, value in line["values"].items():
            matching = [one for one in events.Scalars(name) if one.wall_time == line["time_ms"] / 1000]
            assert any(one.value == pytest.approx(value, rel=1e-6) for one in matching), name
            if line["step"] is not None:
                assert line["step"] in {one.step for one in matching}
    assert track_run(place, RUN, "tensorboard", tmp_path / "board").given == 0
    events.Reload()
    assert [one.step for one in events.Scalars("learner/duration_s")] == [1, 2, 3, 4, 5, 6]


def test_wandb_offline_writes_files_with_the_values(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / f"wandb-{name}"))
    track_run(place, RUN, {"type": "wandb", "project": "UB", "mode": "offline"}, tmp_path / "out")
    every = in_lines(place, tmp_path / "lines")
    told = [line for line in every if line["step"] is not None]
    # W&B's own process writes the last rows while, or soon after, the run is finished.
    deadline = time.monotonic() + DEADLINE_S
    runs, rows = history_of(tmp_path / "out" / RUN / "wandb")
    while len(rows) < len(every) and time.monotonic() < deadline:
        runs, rows = history_of(tmp_path / "out" / RUN / "wandb")
    assert runs == {(RUN, "UB")}
    assert len(rows) == len(every)
    for line in told:
        row = {**line["values"], "update": line["step"], "_timestamp": line["time_ms"] / 1000}
        same = [other for other in rows if other.keys() == row.keys()]
        assert any(row == pytest.approx(other, rel=1e-12) for other in same), row


class Fails:
    """A tracker whose disk is full after a while."""

    def __init__(self, room: int, given: list[str]) -> None:
        self.room = room
        self.given = given
        self.closed = False

    def log(self, values: dict[str, float], *, step: int | None, **_: object) -> None:
        if self.room == 0:
            raise OSError(28, "No space left on device")
        self.room -= 1
        self.given.append(json.dumps([values, step], sort_keys=True))

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("room", [0, 1, 7])
def test_an_interrupted_back_fill_goes_on_where_it_was(place: Place, tmp_path: Path, room: int) -> None:
    given: list[str] = []
    full = Fails(room, given)
    with pytest.raises(RunError, match=r"cannot write: .*No space left on device; make room"):
        track_run(place, RUN, full, tmp_path / "out")
    assert full.closed
    done = track_run(place, RUN, Fails(1000, given), tmp_path / "out")
    assert done.known == room
    assert len(given) == len(set(given)) == len(expected())


def test_a_place_that_is_no_directory_is_named(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write: .*Not a directory.*another --out"):
        track_run(place, RUN, Fails(0, []), tmp_path / "file")


def test_a_kill_in_the_midst_of_noting_costs_one_repetition(tmp_path: Path) -> None:
    received = Received(tmp_path, "jsonl")
    received.add(["a", "b"])
    path = tmp_path / ".jsonl.received"
    path.write_bytes(path.read_bytes()[:-3])
    assert len(received.read()) == 1
    received.add(["c"])
    again = Received(tmp_path, "jsonl")
    assert again.read() == Received(tmp_path, "jsonl").read()
    assert len(again.read()) == 2


async def test_following_a_live_run_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_LOOK_EVERY_S", 0.01)
    place = Place.at(tmp_path / "data")
    events = made_up_run()
    await asyncio.to_thread(append, place.data.root, events[:80])
    given: list[str] = []
    following = asyncio.ensure_future(
        asyncio.to_thread(track_run, place, RUN, Fails(1000, given), tmp_path / "out", follow=True)
    )
    async with asyncio.timeout(60):
        while not given:
            await asyncio.sleep(0)
        await asyncio.to_thread(append, place.data.root, events[80:-1])
        assert not following.done()
        await asyncio.to_thread(
            append, place.data.root, [event for event in events[-1:] if isinstance(event, RunFinished)]
        )
        done = await following
    assert done.update == 6
    values = {key: value for text in given for key, value in json.loads(text)[0].items()}
    assert values[f"collection-{ENV}/trajectories"] == 24
    again = await asyncio.to_thread(track_run, place, RUN, Fails(0, given), tmp_path / "out")
    assert again.given == 0


def test_the_archive_tells_the_same(place: Place, tmp_path: Path) -> None:
    kept = in_lines(place, tmp_path / "archive", source="archive")
    assert by_content(in_lines(place, tmp_path / "log")) == by_content(kept)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda place: track_run(place, RUN, "tensorbord"), "tensorboard"),
        (lambda place: track_run(place, RUN, Fails), "an object with log"),  # type: ignore[arg-type]
        (lambda place: track_run(place, "nope", "jsonl"), "nope"),
        (lambda place: track_run(place, RUN, "jsonl", follow=True, source="archive"), "--source archive"),
        (lambda place: track_run(place, RUN, {"type": "wandb", "mode": "of"}), "'online' or 'offline'"),
    ],
)
def test_mistakes_say_what_to_do(place: Place, call: Callable[[Place], object], says: str) -> None:
    with pytest.raises((ConfigError, RunError), match=says):
        call(place)
