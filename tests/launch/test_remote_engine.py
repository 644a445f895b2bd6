"""Requests over engines that come and go; Ray's actors are replaced by what answers as they do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest
import ray

from unstable_stream.errors import EngineDiedError, UnstableStreamError
from unstable_stream.inference.engine import Completion, GenerationRequest
from unstable_stream.launch.ray.engine import RemoteEngine
from unstable_stream.launch.ray.part_output import PartDiedError

Answer = list[tuple[int, Completion | UnstableStreamError]]


class Actor:
    """Answers each request with its own token, after it was let; one that is lost fails all calls."""

    def __init__(self, token: int, *, says_it_died: bool = False) -> None:
        self.token = token
        self.asked = 0
        self.lost = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._says_it_died = says_it_died
        self.generate_many = self

    def options(self, **_: Any) -> "Actor":
        return self

    def remote(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Awaitable[Answer]]:
        self.asked += len(requests)
        return self._stream(len(requests))

    async def _stream(self, count: int) -> AsyncIterator[Awaitable[Answer]]:
        for index in range(count):
            await self.may_answer.wait()
            if self.lost:
                raise ray.exceptions.RayActorError
            yield self._one(index)

    async def _one(self, index: int) -> Answer:
        if self._says_it_died:
            return [(index, EngineDiedError("out of memory"))]
        return [(index, Completion([self.token], [0.0], "stop"))]


async def ask(engine: RemoteEngine, count: int) -> list[int]:
    answers = await asyncio.gather(*(engine.generate(GenerationRequest([1])) for _ in range(count)))
    return [answer.token_ids[0] for answer in answers]


async def test_what_a_lost_engine_was_asked_another_one_answers() -> None:
    first, second = Actor(1), Actor(2)
    first.may_answer.clear()
    engine = RemoteEngine({0: first, 1: second})
    answers = asyncio.ensure_future(ask(engine, 4))
    while not first.asked:
        await asyncio.sleep(0)
    first.lost = True
    first.may_answer.set()
    assert await answers == [2, 2, 2, 2]
    assert await ask(engine, 2) == [2, 2], "the lost one is asked no more"
    assert first.asked == 4
    assert engine.stats().running == 0


async def test_an_engine_that_says_it_can_answer_no_more_is_lost_too() -> None:
    dead, other = Actor(1, says_it_died=True), Actor(2)
    assert await ask(RemoteEngine({0: dead, 1: other}), 3) == [2, 2, 2]


async def test_without_another_engine_the_games_fail_with_its_name() -> None:
    with pytest.raises(PartDiedError, match="engine 4 died: EngineDiedError: out of memory"):
        await ask(RemoteEngine({4: Actor(1, says_it_died=True)}), 1)
    alone = Actor(1)
    alone.lost = True
    with pytest.raises(PartDiedError, match="opponent 0 died"):
        await ask(RemoteEngine({0: alone}, part="opponent"), 1)


async def test_a_request_that_engines_die_of_does_not_end_all_of_them() -> None:
    actors = {number: Actor(number, says_it_died=True) for number in range(6)}
    with pytest.raises(PartDiedError):
        await ask(RemoteEngine(actors), 1)
    assert sum(actor.asked for actor in actors.values()) == 3


async def test_new_engines_are_asked_and_those_that_leave_answer_what_they_were_asked() -> None:
    leaving, coming = Actor(1), Actor(2)
    leaving.may_answer.clear()
    engine = RemoteEngine({0: leaving})
    early = asyncio.ensure_future(ask(engine, 2))
    while not leaving.asked:
        await asyncio.sleep(0)
    engine.use({1: coming})
    assert await ask(engine, 3) == [2, 2, 2]
    leaving.may_answer.set()
    assert await early == [1, 1]
    assert engine.stats().running == 0


async def test_the_engine_with_the_least_to_do_is_asked() -> None:
    busy, idle = Actor(1), Actor(2)
    busy.may_answer.clear()
    engine = RemoteEngine({0: busy, 1: idle})
    first = asyncio.ensure_future(ask(engine, 5))
    while not busy.asked:
        await asyncio.sleep(0)
    assert await ask(engine, 1) == [2]
    engine.use({0: busy, 1: idle, 2: Actor(3)})
    assert (await ask(engine, 1))[0] in (2, 3), "that the first one is busy is not forgotten"
    busy.may_answer.set()
    assert await first == [1] * 5
