"""Run seeds: each is a whole run of the real services under faults, then the proofs."""

import asyncio
import logging
import multiprocessing
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from tests.simulation.broken import replaced
from tests.simulation.checks import check_all
from tests.simulation.loop import SimulatedLoop, StuckError, simulated_clock
from tests.simulation.scenario import draw_scenario, run_config
from tests.simulation.services import RUN, Services
from tests.simulation.stand_ins import PretendLearner, tokenizer
from tests.simulation.world import MARK, FoundError, World
from unstable_stream.archive import ArchiveWriter
from unstable_stream.errors import ArchiveError, UnstableStreamError
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.recording import finish_run, start_run
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.snapshots import SnapshotPace
from unstable_stream.services.workers import learner_core, rollout

_REPORT_S = 10.0
_ENOUGH_S = 3600.0
"""Simulated seconds after the last fault in which a run must end."""


@dataclass(frozen=True)
class Outcome:
    """What came of a seed."""

    seed: int
    found: str | None
    """What must not happen and did; ``None``: all holds."""
    digest: str
    """Of everything that happened: equal for equal seeds."""
    faults: Mapping[str, int]
    simulated_s: float
    steps: int
    changes: int
    """Of the log."""
    seconds: float = field(compare=False)
    """Real ones."""


def simulate(seed: int, *, traced: bool = False) -> Outcome:
    """Run a seed to its end.

    Args:
        seed: decides on everything.
        traced: print what happens.
    """
    began = time.perf_counter()
    scenario = draw_scenario(seed)
    loop = SimulatedLoop(seed)
    memory = Path("/dev/shm")  # the files of a seed are small and many
    directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=memory if memory.is_dir() else None))
    found: str | None = None
    with simulated_clock(loop, seed):
        world = World(scenario, loop, directory, traced=traced)
    with simulated_clock(loop, seed), replaced(_stand_ins(world)):
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(_run(world, directory))
        except (FoundError, StuckError, UnstableStreamError, AssertionError) as error:
            found = f"{type(error).__name__}: {error}"
            if traced:
                traceback.print_exc()
        finally:
            digest = world.digest()
            world.calm = True
            loop.freeze()
            asyncio.set_event_loop(None)
            loop.close()
    shutil.rmtree(directory)
    return Outcome(
        seed,
        found,
        digest,
        dict(world.faults),
        loop.time(),
        loop.steps,
        world.store.changes,
        time.perf_counter() - began,
    )


async def _run(world: World, directory: Path) -> None:
    config = run_config(world.scenario)
    data = DataDir(directory)
    log = world.log()
    await log.create_topics(list(load_topics().values()))
    await start_run(log, config, RUN)
    services = Services(world, config, data).all()
    running = {service: asyncio.create_task(world.supervise(service)) for service in services}
    torment = asyncio.create_task(world.torment(services))
    first, rest = services[:2], services[2:]
    try:
        await _all_of([running[one] for one in first], list(running.values()), world)
        world.end_faults()
        await finish_run(world.log(), RUN, "completed", "")
        # The archiver goes last: it archives what the others publish while they drain.
        for name in ("processors", "plug-in", "archiver"):
            group = [one for one in rest if one.name.startswith(name)]
            for service in group:
                service.stop.set()
            await _all_of([running[one] for one in group], [running[one] for one in rest], world)
    finally:
        for task in (*running.values(), torment):
            task.cancel()
    world.kill_all("the run is over")
    for at in list(world.store.held):
        world.store.let_go(at)
    report = await check_all(world, world.log(), data)
    world.note(report)
    await world.store.local.close()


async def _all_of(
    wanted: list["asyncio.Task[Any]"], watched: list["asyncio.Task[Any]"], world: World
) -> None:
    """Wait for tasks; raise the first error of any that is watched, or that it takes too long."""
    everything = {*wanted, *watched}
    limit_s = world.scenario.faults_s + _ENOUGH_S
    while True:
        for task in everything:
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()
        if all(task.done() for task in wanted):
            return
        if world.found is not None:
            raise world.found
        if world.loop.time() > limit_s:
            unfinished = ", ".join(sorted(world.unfinished()))
            raise FoundError(f"no end {_ENOUGH_S:g} s after the last fault: {unfinished}")
        waiting = [task for task in everything if not task.done()]
        await asyncio.wait(waiting, timeout=60.0, return_when=asyncio.FIRST_COMPLETED)


def _stand_ins(world: World) -> dict[tuple[Any, str], Any]:
    """Return what stands in for models, and a disk that may be full."""

    class Learner(PretendLearner):
        pass

    Learner.world = world

    store = ArchiveWriter.store

    def store_or_fail(self: ArchiveWriter, prepared: Any) -> Any:
        if world.disk_full("archive"):
            raise ArchiveError(f"no space left {MARK}")
        return store(self, prepared)

    return {
        (learner_core, "StandardLearner"): Learner,
        (rollout, "load_tokenizer"): tokenizer,
        # Snapshots so often that restarts meet them in a short run.
        (FoldSink.__init__, "__kwdefaults__"): {
            **(FoldSink.__init__.__kwdefaults__ or {}),
            "pace": SnapshotPace(events=4, times_its_size=0, passed=25),
        },
        (ArchiveWriter, "store"): store_or_fail,
    }


def quiet() -> None:
    """Silence what services say about faults, thousands of which happen."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # of what killed processes have left open


def run_one(seed: int, *, traced: bool) -> int:
    """Run one seed and print what came of it; return the exit code."""
    quiet()
    print(draw_scenario(seed))
    outcome = simulate(seed, traced=traced)
    print(
        f"seed {seed}: {'nothing found' if outcome.found is None else 'FOUND'}; "
        f"{outcome.simulated_s:.0f} simulated s, {outcome.steps} steps, "
        f"{outcome.changes} changes of the log, {outcome.seconds:.2f} s; trace {outcome.digest}"
    )
    print("faults:", dict(sorted(outcome.faults.items())))
    if outcome.found is not None:
        print(outcome.found)
    return int(outcome.found is not None)


def run_many(seeds: Sequence[int], *, jobs: int, keep_going: bool) -> int:
    """Run seeds and print what came of them; return the exit code."""
    quiet()
    began = told = time.monotonic()
    faults: Counter[str] = Counter()
    findings: list[Outcome] = []
    done, simulated_s = 0, 0.0
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        for outcome in pool.imap_unordered(simulate, seeds):
            done += 1
            simulated_s += outcome.simulated_s
            faults.update(outcome.faults)
            if outcome.found is not None:
                findings.append(outcome)
                print(f"\nseed {outcome.seed}: {outcome.found[:2000]}")
                print(f"replay it: python -m tests.simulation --seed {outcome.seed} --trace", flush=True)
                if not keep_going:
                    pool.terminate()
                    break
            if time.monotonic() - told >= _REPORT_S:
                told = time.monotonic()
                print(f"{done} of {len(seeds)} seeds, {len(findings)} found", file=sys.stderr, flush=True)
    print(
        f"{done} seeds in {time.monotonic() - began:.0f} s: {simulated_s / 3600:.1f} simulated hours, "
        f"{sum(faults.values())} faults ({', '.join(f'{n} {kind}' for kind, n in faults.most_common())})"
    )
    print(f"found: {len(findings)}" + (f" {sorted(one.seed for one in findings)}" if findings else ""))
    return int(bool(findings))
