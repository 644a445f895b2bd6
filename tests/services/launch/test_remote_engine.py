"""Requests over engines that come and go; Ray's actors are replaced by what answers as they do."""

import asyncio
from collections.abc import Awaitable, Mapping

import pytest
import ray

from tests.processes import until
from unstable_stream.errors import EngineDiedError
from unstable_stream.inference.engine import Completion, EngineStats, GenerationRequest
from unstable_stream.services.launch.ray.engine import Answer, Exchange, RemoteEngine
from unstable_stream.services.launch.ray.part_output import PartDiedError


class Actor:
    """Answers each request with its own token, after it was let; one that is lost fails all calls."""

    def __init__(self, token: int, *, says_it_died: bool = False) -> None:
        self.token = token
        self.asked = 0
        self.lost = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._says_it_died = says_it_died
        self.exchange = self

    def remote(self, _: str, requests: Mapping[int, GenerationRequest]) -> Awaitable[list[Answer]]:
        self.asked += len(requests)
        return self._answers(list(requests))

    async def _answers(self, numbers: list[int]) -> list[Answer]:
        await self.may_answer.wait()
        if self.lost:
            raise ray.exceptions.RayActorError
        if self._says_it_died:
            return [(number, EngineDiedError("out of memory")) for number in numbers]
        return [(number, Completion([self.token], [0.0], "stop")) for number in numbers]


async def ask(engine: RemoteEngine, count: int) -> list[int]:
    answers = await asyncio.gather(*(engine.generate(GenerationRequest([1])) for _ in range(count)))
    return [answer.token_ids[0] for answer in answers]


async def test_what_a_lost_engine_was_asked_another_one_answers() -> None:
    first, second = Actor(1), Actor(2)
    first.may_answer.clear()
    engine = RemoteEngine({0: first, 1: second})
    answers = asyncio.ensure_future(ask(engine, 4))
    await until(lambda: first.asked > 0)
    first.lost = True
    first.may_answer.set()
    assert await answers == [2, 2, 2, 2]
    assert await ask(engine, 2) == [2, 2], "the lost one is asked no more"
    assert first.asked == 4
    assert engine.stats().running == 0


async def test_one_that_can_answer_no_more_is_lost_too_and_without_another_the_games_fail_with_its_name() -> (
    None
):
    dead, other = Actor(1, says_it_died=True), Actor(2)
    assert await ask(RemoteEngine({0: dead, 1: other}), 3) == [2, 2, 2]
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
    await until(lambda: leaving.asked > 0)
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
    await until(lambda: busy.asked > 0)
    assert await ask(engine, 1) == [2]
    engine.use({0: busy, 1: idle, 2: Actor(3)})
    assert (await ask(engine, 1))[0] in (2, 3), "that the first one is busy is not forgotten"
    busy.may_answer.set()
    assert await first == [1] * 5


class Slow:
    """An engine that answers a prompt when it is let, with its first token."""

    def __init__(self) -> None:
        self.let: dict[int, asyncio.Future[None]] = {}

    async def generate(self, request: GenerationRequest) -> Completion:
        token = request.prompt_token_ids[0]
        self.let[token] = asyncio.get_running_loop().create_future()
        await self.let[token]
        return Completion([token], [0.0], "stop")

    def stats(self) -> EngineStats:
        raise NotImplementedError

    async def close(self) -> None: ...


class Counted:
    """The engine's side in this process; counts the calls and those that wait."""

    def __init__(self, engine: Slow) -> None:
        self._exchange = Exchange(engine)
        self.exchange = self
        self.calls = self.waiting = 0

    async def remote(self, caller: str, requests: Mapping[int, GenerationRequest]) -> list[Answer]:
        self.calls += 1
        self.waiting += 1
        try:
            return await self._exchange.call(caller, requests)
        finally:
            self.waiting -= 1


async def test_one_call_brings_what_several_asked_for_and_a_long_completion_delays_none() -> None:
    slow = Slow()
    actor = Counted(slow)
    engine = RemoteEngine({0: actor})

    async def game(token: int, turns: int) -> list[int]:
        return [(await engine.generate(GenerationRequest([token]))).token_ids[0] for _ in range(turns)]

    games = []
    for token in range(4):  # each asks alone
        games.append(asyncio.ensure_future(game(token, 2 if token else 1)))
        await until(lambda: len(slow.let) == len(games))
    await until(lambda: actor.waiting == 2)
    assert actor.calls == 4
    for token in (1, 2, 3):
        slow.let.pop(token).set_result(None)
    await until(lambda: {1, 2, 3} <= slow.let.keys())
    assert actor.calls == 5, "the three that were answered together were asked for together"
    for token in (1, 2, 3):
        slow.let.pop(token).set_result(None)
    assert await asyncio.gather(*games[1:]) == [[1, 1], [2, 2], [3, 3]]
    slow.let[0].set_result(None)
    assert await games[0] == [0]
    assert (actor.calls, actor.waiting) == (5, 0)
    assert engine.stats().running == 0


async def test_an_answer_is_fetched_when_nobody_asks_for_more() -> None:
    slow = Slow()
    actor = Counted(slow)
    engine = RemoteEngine({0: actor})
    first, second = (asyncio.ensure_future(engine.generate(GenerationRequest([token]))) for token in (1, 2))
    await until(lambda: {1, 2} <= slow.let.keys())
    assert actor.calls == 1
    slow.let[1].set_result(None)
    assert (await first).token_ids == [1]
    slow.let[2].set_result(None)
    assert (await second).token_ids == [2]
    assert (actor.calls, actor.waiting) == (2, 0)


class Handle:
    """One of the handles of an actor: they are equal, but each call that brings one makes it anew."""

    def __init__(self, actor: Counted) -> None:
        self.exchange = actor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.exchange is self.exchange

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("left", [False, True])
async def test_an_engine_that_comes_again_still_answers_what_it_was_asked(left: bool) -> None:
    """Not left: only another handle of it comes."""
    slow = Slow()
    actor = Counted(slow)
    engine = RemoteEngine({0: Handle(actor)})
    early = asyncio.ensure_future(engine.generate(GenerationRequest([1])))
    await until(lambda: 1 in slow.let)
    engine.use({1: Actor(7)} if left else {0: Handle(actor), 1: Actor(7)})
    assert left or engine.stats().running == 1, "what it was asked is not forgotten"
    assert await ask(engine, 1) == [7], "the other one has less to do"
    engine.use({0: Handle(actor)})
    late = asyncio.ensure_future(engine.generate(GenerationRequest([2])))
    await until(lambda: 2 in slow.let)
    slow.let[2].set_result(None)  # the earlier call brings it
    assert (await asyncio.wait_for(late, 60)).token_ids == [2]
    slow.let[1].set_result(None)
    assert (await asyncio.wait_for(early, 60)).token_ids == [1]
