"""The world of a simulation: processes that die and are started anew, and a log that is far away.

Everything that goes wrong is drawn here, from the seed. A fault is noted in the trace, so that a failing seed
tells its story.
"""

import asyncio
import contextvars
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn

from tests.simulation.log import Calm, SimulatedLog, Store
from tests.simulation.loop import PROCESS, Process, SimulatedLoop, settle
from tests.simulation.scenario import Scenario
from unstable_stream.errors import FencedError, LogUnavailableError
from unstable_stream.log.port import TopicPartition

MARK: Final = "(simulated)"
"""Is in the message of every error that the simulation itself raises."""
_CHANGING: Final = frozenset({"append", "commit", "transaction", "producer", "topics"})


class FoundError(Exception):
    """The simulation has found something that must not happen."""


class Service:
    """A service that is started anew until it has done its work or is stopped."""

    def __init__(self, name: str, main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.main = main
        self.stop = asyncio.Event()
        self.process: Process | None = None
        self.starts = 0


class World:
    """See the module."""

    def __init__(
        self, scenario: Scenario, loop: SimulatedLoop, directory: Path, *, traced: bool = False
    ) -> None:
        self.scenario = scenario
        self.loop = loop
        self.rng = random.Random(f"{scenario.seed}/world")
        self.found: FoundError | None = None
        """What a process did that nobody waits for."""
        self.calm = False
        """Whether the time of faults is over."""
        self.store = Store(
            directory,
            compacts=scenario.like_kafka,
            transaction_markers=scenario.like_kafka,
            session_timeout_s=scenario.session_timeout_s,
        )
        self.faults: Counter[str] = Counter()
        self.traced = traced
        self._digest = hashlib.blake2b(digest_size=16)
        self._processes = 0
        self._ended: dict[Process, asyncio.Future[str]] = {}
        self.outside = contextvars.copy_context()
        """The context of no process."""
        self.on_death: dict[Process, list[Callable[[], None]]] = {}
        loop.before_step = self._before_step
        loop.work_s = self._work_s

    # -- trace --------------------------------------------------------------------------------

    def note(self, *what: object, fault: str | None = None) -> None:
        """Add a line to the trace; count a fault."""
        if fault is not None:
            self.faults[fault] += 1
        line = f"{self.loop.time():10.4f}  {PROCESS.get()!r:<18} {' '.join(map(str, what))}"
        self._digest.update(line.encode())
        if self.traced:
            print(line)

    def digest(self) -> str:
        """Return what two runs of one seed must have in common: the digest of the whole trace."""
        self._digest.update(f"{self.loop.steps} {self.loop.time()}".encode())
        return self._digest.hexdigest()

    # -- processes ----------------------------------------------------------------------------

    def start(self, name: str, main: Coroutine[Any, Any, Any]) -> tuple[Process, asyncio.Future[str]]:
        """Start a process; the future tells how it ended: ``done``, ``killed`` or ``replaced``."""
        self._processes += 1
        process = Process(name, self._processes)
        context = self.outside.copy()
        context.run(PROCESS.set, process)
        ended: asyncio.Future[str] = self.loop.create_future()
        self._ended[process] = ended
        task = self.loop.create_task(main, context=context)
        process.main = task
        self.note("start", repr(process))

        def finished(task: asyncio.Task[Any]) -> None:
            if not ended.done():
                error = None if task.cancelled() else task.exception()
                if error is None:
                    ended.set_result("done")
                else:
                    ended.set_exception(error)
            elif not task.cancelled() and task.exception() is not None and not process.dead:
                try:
                    self._judge_end(process, task.exception())
                except FoundError as found:
                    self.found = found

        task.add_done_callback(finished, context=self.outside)
        return process, ended

    def kill(self, process: Process, why: str) -> None:
        """Let a process do nothing any more, not even clean up."""
        if process.dead:
            return
        self.note("kill", repr(process), why)
        process.dead = True
        process.waiting.clear()
        for tell in self.on_death.pop(process, []):
            tell()
        settle(self._ended[process], "killed")

    async def supervise(self, service: Service) -> None:
        """Start a service, and again when it dies, until it returns by itself."""
        while True:
            service.starts += 1
            if service.starts > 400:
                raise FoundError(f"{service.name} was started 400 times")
            process, ended = self.start(service.name, service.main(service.stop))
            service.process = process
            try:
                how = await asyncio.shield(ended)
            except Exception as error:  # noqa: BLE001 - judged here: whatever is not expected is raised
                self._judge_end(process, error)
                how = "failed"
            self.note("end", repr(process), how)
            if how == "done":
                return
            await asyncio.sleep(self.rng.uniform(0.01, 2.0))

    def _judge_end(self, process: Process, error: BaseException | None) -> None:
        """Raise unless the error of a process was caused by a fault and says so."""
        assert error is not None
        self.note("ended with", type(error).__name__, str(error)[:300])
        chain: list[BaseException] = []
        each: BaseException | None = error
        while each is not None and each not in chain:
            chain.append(each)
            each = each.__cause__ or each.__context__
        if isinstance(error, FencedError) or any(MARK in str(one) for one in chain):
            return
        raise FoundError(f"{process!r} ended with {type(error).__name__}: {error}") from error

    # -- what goes wrong to processes -----------------------------------------------------------

    def _before_step(self, process: Process) -> bool:
        scenario = self.scenario
        if self.calm or process.number == 0 or not (scenario.crash or scenario.pause):
            return True
        drawn = self.rng.random()
        if drawn < scenario.crash:
            self.note("between two steps of", repr(process), fault="crash")
            self.kill(process, "between two steps")
            return False
        if drawn > 1 - scenario.pause:
            self._pause(process)
            return False
        return True

    def _pause(self, process: Process) -> None:
        """Stop a process for a while; sometimes somebody loses patience and starts another one."""
        pause_s = self.rng.uniform(0.05, 3 * self.scenario.session_timeout_s)
        replaced = self.rng.random() < 0.6
        self.note("pause", repr(process), f"{pause_s:.2f} s", "replaced" if replaced else "", fault="pause")
        process.paused = True

        def resume() -> None:
            self.note("resume", repr(process))
            process.paused = False

        self.later(pause_s, resume)
        if not replaced:
            return
        self.faults["zombie"] += 1
        self.later(pause_s * self.rng.random(), settle, self._ended[process], "replaced")
        # A zombie goes on beside its successor for a while.
        self.later(pause_s + self.rng.uniform(0, 20), self.kill, process, "a zombie")

    def later(self, delay_s: float, do: Callable[..., object], *arguments: Any) -> None:
        """Do something after a while, outside of all processes."""
        self.loop.call_later(delay_s, do, *arguments, context=self.outside)

    def kill_all(self, why: str) -> None:
        """Kill all processes that still run."""
        for process in self._living():
            self.kill(process, why)

    def unfinished(self) -> list[str]:
        """Return the names of the processes that still run."""
        return [repr(process) for process in self._living()]

    def _living(self) -> list[Process]:
        return [one for one in self._ended if not one.dead and one.main is not None and not one.main.done()]

    async def crash_here(self) -> NoReturn:
        """Kill the present process at this very place."""
        self.kill(PROCESS.get(), "here")
        await self.loop.create_future()
        raise AssertionError("a dead process went on")

    # -- the log ------------------------------------------------------------------------------

    def log(self) -> SimulatedLog:
        """Open a handle on the log, as a process does."""
        return SimulatedLog(self.store, _Distance(self))

    # -- threads and disks --------------------------------------------------------------------

    def _work_s(self) -> float:
        return 0.0 if self.calm else self.rng.random() ** 4 * 0.2

    def disk_full(self, what: str) -> bool:
        """Draw whether a write to the disk fails."""
        if self.calm or self.rng.random() >= self.scenario.disk_full:
            return False
        self.note("disk full", what, fault="disk full")
        return True

    # -- what happens at times ------------------------------------------------------------------

    async def torment(self, services: list[Service]) -> None:
        """Let happen what happens to the whole machine, until the time of faults is over."""
        scenario, rng = self.scenario, self.rng
        often = {
            self._power_cut: scenario.power_cuts,
            self._clock_jump: scenario.clock_jumps,
            self._compaction: scenario.compactions,
            self._open_transaction: scenario.open_transactions,
        }
        plan = [
            (rng.uniform(0.5, scenario.faults_s), do) for do, times in often.items() for _ in range(times)
        ]
        for at_s, do in sorted(plan, key=lambda planned: planned[0]):
            await asyncio.sleep(max(0.0, at_s - self.loop.time()))
            if self.calm:
                return
            await do(services)
        await asyncio.sleep(max(0.0, scenario.faults_s - self.loop.time()))
        self.end_faults()

    def end_faults(self) -> None:
        """From here on nothing goes wrong."""
        self.note("the faults are over")
        self.calm = True

    async def _power_cut(self, services: list[Service]) -> None:
        self.note("power cut", fault="power cut")
        self.kill_all("power cut")

    async def _clock_jump(self, services: list[Service]) -> None:
        living = [one.process for one in services if one.process is not None and not one.process.dead]
        for process in living:
            if self.rng.random() < 0.5:
                process.clock_offset_ns += round(self.rng.uniform(-7200, 7200) * 1e9)
        self.note("clock jump", fault="clock jump")

    async def _compaction(self, services: list[Service]) -> None:
        self.note("compaction of", self.store.compact(), "records", fault="compaction")

    async def _open_transaction(self, services: list[Service]) -> None:
        log = self.store.local
        topic = self.rng.choice(sorted(await log.topics()))
        lasts_s = 70 * self.rng.random() ** 2
        self.note("open transaction in", topic, f"{lasts_s:.2f} s", fault="open transaction")
        for at in await log.end_offsets(topic):
            await self.store.hold_back(at)
            self.later(lasts_s, self.store.let_go, at)


class _Distance(Calm):
    """What lies between a process and the log."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def request(self, what: str) -> None:
        world, scenario = self._world, self._world.scenario
        process = PROCESS.get()
        if process.dead:
            raise LogUnavailableError(f"a dead process asked {MARK}")  # when its coroutines are closed
        latency_s = world.rng.random() * scenario.latency_s
        if not world.calm and world.rng.random() < scenario.hiccup:
            latency_s *= 100
        await asyncio.sleep(latency_s)
        if world.calm or process.number == 0:
            return
        if world.rng.random() < scenario.crash_at_request:
            world.note("before", what, fault="crash before a request")
            await world.crash_here()
        if world.rng.random() < scenario.lost_request:
            world.note("lost request", what, fault="lost request")
            raise LogUnavailableError(f"{what}: the request was lost {MARK}")

    async def answer(self, what: str) -> None:
        world, scenario = self._world, self._world.scenario
        process = PROCESS.get()
        world.note(what, world.store.changes)
        if not (world.calm or process.number == 0):
            if world.rng.random() < scenario.crash_at_request:
                world.note("after", what, fault="crash after a request")
                await world.crash_here()
            if what in _CHANGING and world.rng.random() < scenario.lost_answer:
                world.note("lost answer", what, fault="lost answer")
                raise LogUnavailableError(f"{what}: the answer was lost {MARK}")
        await asyncio.sleep(world.rng.random() * scenario.latency_s)

    def deliverable(self, at: TopicPartition, waiting: int) -> int:
        world = self._world
        if world.calm or world.rng.random() >= world.scenario.late_delivery:
            return waiting
        return world.rng.randint(0, min(waiting, 3))
