"""What the pool of engines decides, step by step; its actors are replaced by what answers as they do."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
import ray

from tests.builders import made
from tests.services.workers.test_game_schedule import config
from unstable_stream.events import EnginesWanted
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.engine_sections import EngineRange
from unstable_stream.runs.placement import Machine, Placement, Share
from unstable_stream.services.launch.ray import engine_pool
from unstable_stream.services.launch.ray.cluster import Cluster, Whereabouts
from unstable_stream.services.launch.ray.engine import EngineHealth
from unstable_stream.services.launch.ray.engine_pool import EnginePool, RayEngine, WantedEngines
from unstable_stream.services.launch.ray.part_output import PartDiedError


class Actor:
    """Loads the model until it is told to have loaded it, or to have failed."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.loaded = asyncio.Event()
        self.error: Exception | None = None
        self.running = 0
        self.failure = ""
        self.health = self.close = self

    async def _answer(self) -> EngineHealth:
        await self.loaded.wait()
        if self.error is not None:
            raise self.error
        return EngineHealth(Whereabouts(self.node, f"host of {self.node}"), self.running, self.failure)

    def remote(self) -> Any:
        return self._answer()


class Pool(EnginePool):
    """Starts what stands where actors are."""

    def _start(self, number: int, share: Share, options: Mapping[str, Any], *, initial: bool = False) -> Any:
        strategy = options.get("scheduling_strategy")
        actor: Any = Actor(getattr(strategy, "node_id", "first"))
        self._slots[number] = RayEngine(number, actor, initial=initial)
        return self._slots[number]

    def actor(self, number: int) -> Actor:
        found: Actor = self._slots[number].actor
        return found


Begin: TypeAlias = Callable[..., Awaitable[Pool]]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Make a pool whose first engine answers."""
    monkeypatch.setattr(engine_pool, "actor_options", lambda *_, **__: {})
    monkeypatch.setattr(
        engine_pool,
        "NodeAffinitySchedulingStrategy",
        lambda node, soft: SimpleNamespace(node_id=node, soft=soft),
    )
    monkeypatch.setattr(ray, "kill", lambda actor: None)

    async def begin(num_actors: object, gpus: float = 0.0) -> Pool:
        plan = Placement(Share("learner", gpus), (Share("engine 0", gpus),), (Machine(),))
        run = RunContext("run-a", config(collector={"num_actors": num_actors}), DataDir())
        pool = Pool(run, "model", plan, {})
        pool.start()
        pool.actor(0).loaded.set()
        assert await step(pool, machines("first")) == [("engine-0", "added")]
        return pool

    return begin


async def step(pool: Pool, cluster: Cluster, *, times: int = 2) -> list[tuple[str, str]]:
    """Take steps of the pool, with time for answers between them; return who came and went."""
    told: list[tuple[str, str]] = []
    for _ in range(times):
        told += [(change.engine, change.change) for change in pool._hear()]
        pool._leave(cluster)
        pool._add(cluster)
        pool._pushed = pool.actors
        told += [(change.engine, change.change) for change in await pool._end_idle()]
        for _ in range(5):
            await asyncio.sleep(0)
    return told


def machines(*nodes: str, drained: tuple[str, ...] = (), free: float = 0.0) -> Cluster:
    return Cluster(
        gpus=dict.fromkeys(nodes, free), cpus=dict.fromkeys(nodes, 1.0), drained=frozenset(drained)
    )


async def test_a_new_machine_gets_an_engine_which_is_asked_once_it_has_loaded(begun: Begin) -> None:
    pool = await begun({"min": 1, "max": 3})
    both = machines("first", "second")
    assert await step(pool, both) == []
    assert list(pool.actors) == [0], "it loads the model"
    assert pool.actor(1).node == "second"
    pool.actor(1).loaded.set()
    assert await step(pool, both) == [("engine-1", "added")]
    assert list(pool.actors) == [0, 1]


async def test_free_gpus_are_taken_up_to_the_most(begun: Begin) -> None:
    pool = await begun({"min": 1, "max": 3}, gpus=1.0)
    await step(pool, Cluster(gpus={"first": 0.0, "second": 8.0}, cpus={}), times=1)
    assert [pool.actor(number).node for number in (1, 2)] == ["second", "second"]
    assert len(pool._slots) == 3


async def test_without_free_gpus_nothing_is_started(begun: Begin) -> None:
    pool = await begun(2, gpus=1.0)
    await step(pool, machines("first", "second", free=0.5))
    assert list(pool._slots) == [0]


async def test_one_that_has_something_to_answer_is_not_ended(begun: Begin) -> None:
    pool = await begun(2)
    await step(pool, machines("first"))
    pool.actor(1).loaded.set()
    await step(pool, machines("first"))
    pool.actor(1).running = 3
    await step(pool, machines("first"))
    pool._wanted.apply([made(EnginesWanted, run_id="run-a", engines=1)], "run-a")
    assert await step(pool, machines("first")) == []
    assert list(pool.actors) == [0], "it is asked nothing more"
    pool.actor(1).running = 0
    assert await step(pool, machines("first"), times=4) == [("engine-1", "removed")]


async def test_a_machine_that_is_drained_is_left_once_another_engine_answers(begun: Begin) -> None:
    pool = await begun(1)
    left = machines("second", drained=("first",))
    assert await step(pool, left, times=3) == []
    assert list(pool.actors) == [0], "nobody else answers yet"
    pool.actor(1).loaded.set()
    told = await step(pool, left, times=6)
    assert sorted(told) == [("engine-0", "removed"), ("engine-1", "added")]
    assert list(pool.actors) == [1]


async def test_one_that_fails_to_load_is_tried_again_later_and_later(
    begun: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await begun(2)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pauses = []
    for _ in range(7):
        await step(pool, machines("first"))
        pool.actor(1).error = ray.exceptions.RayActorError()
        pool.actor(1).loaded.set()
        assert await step(pool, machines("first")) == [("engine-1", "lost")]
        pauses.append(round(pool._not_before - now))
        assert await step(pool, machines("first"), times=3) == []
        assert list(pool._slots) == [0], "not before its time"
        now = pool._not_before
    assert pauses == [10, 20, 40, 80, 160, 300, 300]


async def test_one_that_says_it_can_answer_no_more_is_replaced(begun: Begin) -> None:
    pool = await begun(2)
    await step(pool, machines("first"))
    pool.actor(1).loaded.set()
    await step(pool, machines("first"))
    dead = pool.actor(1)
    dead.failure = "EngineDiedError: out of memory"
    assert await step(pool, machines("first"), times=3) == [("engine-1", "lost")]
    assert pool.actor(1) is not dead


async def test_the_last_one_takes_the_collector_with_it(begun: Begin) -> None:
    pool = await begun(1)
    pool.actor(0).error = ray.exceptions.RayActorError()
    with pytest.raises(PartDiedError, match="engine 0 died"):
        await step(pool, machines("first"), times=3)


# -- how many there shall be --------------------------------------------------------------------------------

RANGE = EngineRange(min=2, max=8)


def wanted(configured: int | EngineRange, *by_person: int | None) -> WantedEngines:
    fold = WantedEngines(configured)
    asked = [("run-a", engines) for engines in by_person] + [("run-b", 99)]
    fold.apply([made(EnginesWanted, run_id=run, engines=engines) for run, engines in asked], "run-a")
    return fold


@pytest.mark.parametrize(
    ("configured", "by_person", "room", "count", "why"),
    [
        (3, (), 1, 3, "collector.num_actors is 3"),
        (RANGE, (), 0, 2, "the cluster has room, up to 8"),
        (RANGE, (), 5, 5, "the cluster has room, up to 8"),
        (RANGE, (), 20, 8, "the cluster has room, up to 8"),
        (RANGE, (1,), 5, 1, "a person wants 1"),
        (RANGE, (12,), 5, 12, "a person wants 12"),
        (3, (12, 4), 1, 4, "a person wants 4"),
        (RANGE, (12, None), 5, 5, "the cluster has room, up to 8"),
    ],
)
def test_the_last_word_of_a_person_counts_else_the_room(
    configured: int | EngineRange, by_person: tuple[int | None, ...], room: int, count: int, why: str
) -> None:
    found = wanted(configured, *by_person)
    assert (found.count(room), found.why()) == (count, why)
