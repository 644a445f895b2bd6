"""Plug-ins on both logs: resumed, killed, failing, back-filled; every event counts once, in order."""

import asyncio
import contextlib
import dataclasses
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.archive.history import made_up_run
from tests.builders import made
from tests.forks import assert_killed
from tests.services.streams.plugin_bench import PluginBench, counting, run_until_killed
from tests.services.streams.plugin_bench import bench as bench  # a fixture
from tests.services.streams.plugin_bench import local as local  # a fixture
from tests.services.streams.tapped_log import at_call
from tests.tiers import chosen
from unstable_stream import Context, consumer
from unstable_stream.errors import PluginError, UnknownTopicError
from unstable_stream.events import Event, GameOutcome, RecordRejected, Step
from unstable_stream.history.proofs.balance import balance
from unstable_stream.history.proofs.ledger import Ledger
from unstable_stream.log.port import Record, StoredRecord, TopicPartition
from unstable_stream.runs.history import RunStatus
from unstable_stream.services.streams.plugins import Plugin
from unstable_stream.services.streams.plugins.host import run_plugin
from unstable_stream.services.streams.plugins.worker import PluginStates

pytestmark = pytest.mark.longer

STEPS_A_RUN = 46  # of made_up_run with six updates


def steps_of(run_id: str) -> list[Event]:
    steps: list[Event] = [event for event in made_up_run(run_id) if isinstance(event, Step)]
    assert len(steps) == STEPS_A_RUN
    return steps


async def numbered(bench: PluginBench, plugin: Plugin, records: Sequence[StoredRecord] | None = None) -> bool:
    """Whether the plug-in has numbered the steps of every run and partition 1, 2, 3, … and each just once.

    ``records`` are the steps there have been; by default those the log has now.
    """
    records = await bench.stored("steps") if records is None else records
    sizes = Counter((record.partition, record.headers["ce_source"]) for record in records)
    expected = Counter(float(n) for size in sizes.values() for n in range(1, size + 1))
    return Counter((await bench.metrics(plugin)).values()) == expected


async def test_it_goes_on_where_it_was_with_the_state_it_had(bench: PluginBench) -> None:
    plugin = counting(bench.suffix)
    steps = steps_of(bench.run_id)
    for part, size in ((steps[:20], 20), ([], 0), (steps[20:], STEPS_A_RUN - 20)):
        await bench.publish(part)
        done = await bench.run(plugin)
        assert (done.handled, done.emitted, done.rejected) == (size, size, 0)
    assert await numbered(bench, plugin)
    assert len(await bench.metrics(plugin)) == STEPS_A_RUN


async def test_each_run_has_a_state_of_its_own_and_one_run_alone_a_group_of_its_own(
    local: PluginBench,
) -> None:
    both = [step for pair in zip(steps_of("a"), steps_of("b"), strict=True) for step in pair]
    await local.publish(both)
    plugin = counting("")
    assert (await local.run(plugin, run_id="b")).handled == STEPS_A_RUN
    assert (await local.run(plugin)).handled == 2 * STEPS_A_RUN
    assert set(await local.log.groups()) == {"plugin/counting", "plugin/counting/b"}
    assert await numbered(local, plugin)
    file, log_id = local.data.plugins / "counting.sqlite", await local.log.log_id()
    for group, left in (("plugin/counting", ["a"]), ("plugin/counting/b", None)):
        with contextlib.closing(PluginStates(file, log_id, group)) as states:
            states.forget_runs(["b", "c"])
            saved = states.load(TopicPartition("steps", 0))
            assert (saved and [*saved.states]) == left


# -- kills ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for kill -9: nothing in the package catches it."""


def kill() -> None:
    raise Killed


# Before the next poll its state is saved.
_CALLS = [f"{when} {call}" for call in ("append metrics", "commit", "poll") for when in ("before", "after")]


@chosen(
    "location, call",
    [*(("local", call) for call in _CALLS), *(("kafka", call) for call in _CALLS[1::2])],
    [("kafka", call) for call in _CALLS[::2]],
    indirect=["location"],
)
async def test_killed_between_steps_it_counts_every_event_once(bench: PluginBench, call: str) -> None:
    plugin = counting(bench.suffix)
    await bench.publish(steps_of(bench.run_id))
    for occurrence in (1, 3):
        with pytest.raises(Killed):
            await bench.run(plugin, told=at_call(call, occurrence, kill))
    await bench.run(plugin)
    assert await numbered(bench, plugin)


@chosen(
    "location, call, occurrence",
    [("local", "after append metrics", 2), ("kafka", "after commit", 3)],
    [("kafka", "after append metrics", 2), ("local", "after commit", 3)],
    indirect=["location"],
)
async def test_a_process_killed_by_the_system_counts_every_event_once(
    bench: PluginBench, call: str, occurrence: int
) -> None:
    plugin = counting(bench.suffix)
    await bench.publish(steps_of(bench.run_id))
    place = (bench.location, bench.data.root, bench.suffix)
    await asyncio.to_thread(assert_killed, run_until_killed, *place, call, occurrence)
    await bench.run(plugin)
    assert await numbered(bench, plugin)


@pytest.mark.parametrize("reset", [True, False])
async def test_reset_begins_again_once_and_so_does_a_lost_file_of_states(
    bench: PluginBench, reset: bool
) -> None:
    plugin = counting(bench.suffix)
    await bench.publish(steps_of(bench.run_id))
    await bench.run(plugin)
    if not reset:
        (bench.data.root / "plugins" / f"{plugin.name}.sqlite").unlink()
    assert (await bench.run(plugin, reset=reset)).handled == STEPS_A_RUN
    assert (await bench.run(plugin)).handled == 0
    assert await numbered(bench, plugin)


async def test_two_members_share_the_work_and_one_takes_over(local: PluginBench) -> None:
    plugin = counting("")
    steps = steps_of(local.run_id)
    await local.publish(steps[:24])
    stops = [asyncio.Event(), asyncio.Event()]
    members = [
        asyncio.ensure_future(run_plugin(local.log, plugin, local.data, stop=stop, max_records=3))
        for stop in stops
    ]

    async def until_there_are(metrics: int) -> None:
        while len(await local.metrics(plugin)) < metrics:
            for member in members:
                if member.done():
                    member.result()  # raises what ended it
            await asyncio.sleep(0.01)

    async with asyncio.timeout(60):
        await until_there_are(24)
        await local.publish(steps[24:36])
        await until_there_are(36)
        stops[0].set()
        await members[0]
        await local.publish(steps[36:])
        await until_there_are(STEPS_A_RUN)
        stops[1].set()
        await members[1]
    assert await numbered(local, plugin)


def test_a_file_of_states_that_another_member_is_creating_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "counting.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        released = threading.Timer(0.2, other.execute, ["COMMIT"])
        released.start()
        try:
            PluginStates(path, "log", "group").close()
        finally:
            released.join()


# -- where to begin -------------------------------------------------------------------------------


async def test_from_the_end_it_is_given_what_comes_after_even_if_killed_at_once(bench: PluginBench) -> None:
    plugin = counting(bench.suffix)
    steps = steps_of(bench.run_id)
    await bench.publish(steps[:30])
    assert (await bench.run(plugin, start="end")).handled == 0
    await bench.publish(steps[30:])
    assert (await bench.run(plugin, start="end")).handled == STEPS_A_RUN - 30


async def test_from_a_time(bench: PluginBench) -> None:
    steps = steps_of(bench.run_id)
    await bench.publish(steps)
    moment = steps[30].occurred_at_ms
    late = sum(step.occurred_at_ms >= moment for step in steps)
    assert 0 < late < STEPS_A_RUN
    assert (await bench.run(counting(bench.suffix), start=moment)).handled == late


async def delete_first_half(bench: PluginBench) -> None:
    """Delete half of each partition of the steps."""
    records = await bench.stored("steps")
    begins: dict[TopicPartition, int] = {}
    for number in {record.partition for record in records}:
        offsets = [record.offset for record in records if record.partition == number]
        begins[TopicPartition(bench.topic("steps"), number)] = offsets[len(offsets) // 2]
    await bench.delete_before(begins)


async def test_a_log_that_lost_what_was_handled_is_named_with_the_command(bench: PluginBench) -> None:
    plugin = counting(bench.suffix)
    await bench.publish(steps_of(bench.run_id))
    await bench.run(plugin)
    with contextlib.closing(sqlite3.connect(bench.data.root / "plugins" / f"{plugin.name}.sqlite")) as states:
        states.execute("UPDATE positions SET next_offset = next_offset + 5")
        states.commit()
    with pytest.raises(PluginError, match=r"handled steps.*, but the log ends at .*--reset"):
        await bench.run(plugin)
    assert (await bench.run(plugin, reset=True)).handled == STEPS_A_RUN


@pytest.mark.parametrize("expires", [True, False])
async def test_a_gap_stops_a_plugin_unless_records_of_its_topic_expire(
    bench: PluginBench, expires: bool
) -> None:
    plugin = counting(bench.suffix)
    steps = steps_of(bench.run_id)
    await bench.publish(steps[:8])
    assert (await bench.run(plugin)).handled == 8
    await bench.publish(steps[8:])
    await delete_first_half(bench)
    left = len(await bench.stored("steps"))
    if expires:
        settings = (await bench.log.topic_settings())[bench.topic("steps")]
        await bench.log.alter_topics([dataclasses.replace(settings, retention_ms=10**15)])
        new = {step.event_id.encode() for step in steps[8:]}
        kept = [record for record in await bench.stored("steps") if record.headers["ce_id"] in new]
        assert (await bench.run(plugin)).handled == len(kept)
        return
    with pytest.raises(
        PluginError, match=r"offsets \d+ to \d+ were deleted before they were handled.*--reset"
    ):
        await bench.run(plugin)
    assert (await bench.run(plugin, reset=True)).handled == left


# -- failures -------------------------------------------------------------------------------------


@dataclass
class Tally:
    good: int = 0
    touched: int = 0


def moody(bench: PluginBench, fails: Callable[[int, int], bool], *, retries: int = 2) -> Plugin:
    """A plug-in that fails at chosen games: ``fails(game, attempt)``, after it has changed its state."""
    attempts = Counter[int]()

    @consumer(
        topics=[bench.topic("game-outcomes")],
        name=f"moody{bench.suffix}",
        state=Tally,
        retries=retries,
        backoff_s=0.001,
    )
    def handle(event: GameOutcome, context: Context) -> None:
        context.state.touched += 1
        if event.split == "train":
            attempts[event.game_index] += 1
            if fails(event.game_index, attempts[event.game_index]):
                raise ZeroDivisionError(f"game {event.game_index} is too much")
        context.state.good += 1
        assert context.state.good == context.state.touched, "a failed attempt left a trace in the state"
        context.emit("good", context.state.good)

    return handle


def outcomes_of(run_id: str) -> list[GameOutcome]:
    return [event for event in made_up_run(run_id) if isinstance(event, GameOutcome)]


async def test_what_it_fails_at_goes_to_dead_letters_and_it_goes_on(bench: PluginBench) -> None:
    plugin = moody(bench, lambda game, attempt: game in (2, 5, 23))
    outcomes = outcomes_of(bench.run_id)
    await bench.publish(outcomes)
    done = await bench.run(plugin)
    assert (done.handled, done.rejected, done.retried) == (35, 3, 6)
    assert sorted((await bench.metrics(plugin)).values()) == [float(n) for n in range(1, 36)]
    letters = await bench.letters(plugin)
    failed = [e for e in outcomes if e.split == "train" and e.game_index in (2, 5, 23)]
    assert [letter.record_value for letter in letters] == [bench.record(event).value for event in failed]
    assert letters[0].reason.startswith("ZeroDivisionError: game 2 is too much (at test_plugin_host.py:")
    assert letters[0].reason.endswith(" in handle)")
    assert letters[0].consumer == plugin.source
    assert (await bench.run(plugin)).handled == 0


async def test_what_mends_itself_leaves_no_trace(bench: PluginBench) -> None:
    plugin = moody(bench, lambda game, attempt: game % 4 == 1 and attempt < 3)
    await bench.publish(outcomes_of(bench.run_id))
    done = await bench.run(plugin)
    assert (done.handled, done.rejected) == (38, 0)
    assert sorted((await bench.metrics(plugin)).values()) == [float(n) for n in range(1, 39)]
    assert await bench.letters(plugin) == []


@pytest.mark.parametrize("drain", [False, True])
async def test_a_stop_during_the_pause_leaves_the_event_for_the_next_start_unless_it_drains(
    local: PluginBench, drain: bool
) -> None:
    stop = asyncio.Event()
    seen: list[int] = []

    @consumer(topics=["game-outcomes"], name="slow-to-mend", backoff_s=3600)
    def handle(event: GameOutcome, context: Context) -> None:
        seen.append(event.game_index)
        if len(seen) == 5:
            loop.call_soon_threadsafe(stop.set)
            raise RuntimeError("not now")
        if drain and event.split == "train" and event.game_index == 23:
            raise RuntimeError("never")

    loop = asyncio.get_running_loop()
    await local.publish(outcomes_of(local.run_id))
    first = await local.run(handle, stop=stop, until_end=not drain, drain=drain)
    second = await local.run(handle)
    assert first.handled + second.handled == 38 - drain
    assert (first.rejected, second.rejected) == (drain, 0)
    assert (second.handled == 0) == drain
    assert len(await local.letters(handle)) == drain


async def test_a_record_that_is_no_event_is_set_aside_without_asking_the_plugin(local: PluginBench) -> None:
    await local.log.append([Record("game-outcomes", "k", b"{]", timestamp_ms=5)])
    await local.publish(outcomes_of(local.run_id))
    plugin = moody(local, lambda game, attempt: False)
    done = await local.run(plugin)
    assert (done.handled, done.rejected, done.retried) == (38, 1, 0)
    (letter,) = await local.letters(plugin)
    assert letter.record_value == b"{]"
    assert letter.reason.startswith("EventDecodeError: game-outcomes[0]@")


async def test_failing_at_dead_letters_makes_no_further_ones(local: PluginBench) -> None:
    @consumer(topics=["dead-letters"], name="morbid", retries=0)
    def morbid(event: RecordRejected, context: Context) -> None:
        raise ValueError("no")

    await local.publish([made(RecordRejected, run_id="", consumer="c", topic="t", reason="r")])
    assert (await local.run(morbid)).rejected == 1
    assert len(await local.stored("dead-letters")) == 1


@dataclass
class Unsavable:
    things: list[object] = field(default_factory=list)


@consumer(topics=["game-outcomes"], name="unsavable", state=Unsavable)
def unsavable(event: GameOutcome, context: Context) -> None:
    context.state.things.append(object())


@consumer(topics=["game-outcomes"], name="stillborn")
class Stillborn:
    def start(self) -> None:
        raise OSError("no such device")

    def handle(self, event: GameOutcome, context: Context) -> None: ...


@consumer(topics=["nonsense"], name="lost")
def lost(event: Event, context: Context) -> None: ...


@pytest.mark.parametrize(
    ("plugin", "error", "says"),
    [
        (unsavable, PluginError, "its state cannot be saved"),
        (Stillborn, PluginError, r"'stillborn' does not start: OSError: no such device \(at test_"),
        (lost, UnknownTopicError, r"'lost': no topic 'nonsense' on this log; it has checkpoints"),
    ],
)
async def test_one_that_cannot_run_says_so_before_anything_is_committed(
    local: PluginBench, plugin: Plugin, error: type[Exception], says: str
) -> None:
    await local.publish(outcomes_of(local.run_id))
    with pytest.raises(error, match=says):
        await local.run(plugin)
    assert set((await local.log.committed_positions(plugin.source)).values()) <= {0}


async def test_an_async_plugin_has_one_loop_from_start_to_stop(local: PluginBench) -> None:
    loops: dict[str, asyncio.AbstractEventLoop] = {}

    @consumer(topics=["game-outcomes"], name="async-one")
    class AsyncOne:
        async def start(self) -> None:
            loops["start"] = asyncio.get_running_loop()

        async def handle(self, event: GameOutcome, context: Context) -> None:
            await asyncio.sleep(0)
            loops[str(context.position)] = asyncio.get_running_loop()
            context.emit("x", 1)

        async def stop(self) -> None:
            loops["stop"] = asyncio.get_running_loop()

    await local.publish(outcomes_of(local.run_id))
    done = await local.run(AsyncOne)  # type: ignore[arg-type]  # mypy looks past class decorators
    assert done.emitted == 38
    assert list(loops) == ["start", *(f"game-outcomes[0]@{offset}" for offset in range(38)), "stop"]
    (one,) = set(loops.values())
    assert one is not asyncio.get_running_loop()


async def test_slow_code_does_not_hold_up_the_event_loop(local: PluginBench) -> None:
    """The group's heartbeat goes on while a plug-in that is not async waits for it."""
    beats = asyncio.Event()
    loop = asyncio.get_running_loop()

    @consumer(topics=["game-outcomes"], name="slow")
    def slow(event: GameOutcome, context: Context) -> None:
        future = asyncio.run_coroutine_threadsafe(_set(beats), loop)
        future.result(30)

    await local.publish(outcomes_of(local.run_id)[:1])
    assert (await local.run(slow)).handled == 1


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_what_a_plugin_sets_aside_says_nothing_about_the_run() -> None:
    """The run's own consumers may have read it, so the audit must not take its steps for set aside."""
    ledger = Ledger(RunStatus("r"))
    for group, expected in (("plugin/moody", 0), ("reward-processor/r", 1)):
        ledger.apply(made(RecordRejected, run_id="r", consumer=group, topic="trajectories"), 0, 0)
        assert balance(ledger).rejected == expected
