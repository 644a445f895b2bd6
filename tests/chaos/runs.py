"""Do faults to runs until there were enough; then prove that nothing was lost and nothing done twice."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.kafka.brokers import KafkaCluster
from tests.chaos.endpoint import BadEndpoint
from tests.chaos.faults import LAUNCHER_DIED, Fault, faults_for
from tests.whole_run.processes import History, LaunchedRun
from unstable_stream.events import LearnerUpdate, RunFinished, RunStarted

__all__ = ["KEY_ENV", "Chaos", "Report", "do_faults"]

KEY_ENV = "CHAOS_ENDPOINT_KEY"
"""The environment variable with the key of the failing endpoint; it takes any."""
_AT_ONCE = 0.2
"""The share of faults after which the next one comes at once, not after an update."""


@dataclass
class Report:
    """What was done, and what came of it."""

    seed: int
    log: str
    done: Counter[str] = field(default_factory=Counter)
    """Faults by name."""
    recovered_s: dict[str, list[float]] = field(default_factory=dict)
    """By fault, the seconds until the next update was published."""
    runs: dict[str, int] = field(default_factory=dict)
    """By run, the number of its updates when it was proven."""
    endpoint: Mapping[str, int] = field(default_factory=dict)
    """Requests to the failing endpoint, by what they got."""

    def lines(self) -> list[str]:
        """Return a table in Markdown."""
        rows = ["| Fault | Times | Next update after: median, longest |", "|---|---|---|"]
        for name in sorted(self.done):
            times = self.recovered_s.get(name, [])
            told = f"{statistics.median(times):.0f} s, {max(times):.0f} s" if times else "–"
            rows.append(f"| {name} | {self.done[name]} | {told} |")
        return [
            *rows,
            "",
            f"{self.done.total()} faults in {len(self.runs)} runs of {sum(self.runs.values())} updates, log "
            f"{self.log}, seed {self.seed}: audit and verify found nothing.",
            f"Requests to the failing endpoint: {dict(self.endpoint)}.",
        ]


class Chaos:
    """Trains small runs on one log, one after the other, and does faults to them."""

    def __init__(
        self,
        wanted: int,
        data: Path,
        faults: Sequence[Fault],
        *,
        seed: int,
        location: str,
        endpoint: BadEndpoint,
        updates: int,
        say: Callable[[str], None],
    ) -> None:
        """See :func:`do_faults`."""
        self._wanted = wanted
        self._data = data
        self._faults = faults
        self._random = random.Random(seed)
        self._location = location
        self._endpoint = endpoint
        self._updates = updates
        self._say = say
        self._history = History(data, location)
        self.report = Report(seed, location.partition(":")[0])

    async def run(self) -> None:
        """Do all faults, to as many runs as that takes."""
        try:
            while not self._enough:
                await self._train_one()
        finally:
            await self._history.close()
        self.report.endpoint = dict(self._endpoint.answered)

    async def _train_one(self) -> None:
        seed = self.report.seed + len(self.report.runs)
        opponents = (
            '{name="random-legal"}',
            f'{{name="failing", kind="openai", base_url="{self._endpoint.url}", api_key_env="{KEY_ENV}"}}',
        )
        settings = (
            f"name=chaos-{seed}",
            f"seed={seed}",
            f"learner.iterations={self._updates}",
            "learner.save_every=2",
            "max_restarts=100000",
            f"evaluation.opponents=[{', '.join(opponents)}]",
        )
        run = LaunchedRun.train(self._data, *settings, log=self._location, history=self._history)
        while True:
            async with run:
                await run.until("its start", lambda seen: bool(seen.of(RunStarted)))
                run_id = self._history.of(RunStarted)[0].run_id
                if await self._do_some(run):
                    run = LaunchedRun.resume(run, run_id)
                    continue
                if self._enough:
                    run.interrupt()
                assert await run.end() == (130 if self._enough else 0), run.told()
                break
        assert self._history.of(RunFinished)[-1].outcome == ("stopped" if self._enough else "completed")
        for proof in ("audit", "verify"):
            found = await run.command(proof, run_id)
            assert found.returncode == 0, f"{proof} {run_id}:\n{found.stdout}{found.stderr}"
        self.report.runs[run_id] = self._made()
        self._say(f"run {run_id}: {self._made()} updates, audit and verify found nothing")
        self._history.events.clear()  # from here on it holds the next run alone

    async def _do_some(self, run: LaunchedRun) -> bool:
        """Do faults until the launcher died (``True``), the run nears its end, or there were enough."""
        waiting: list[tuple[str, float]] = []
        while True:
            await self._until_update(run, self._made() + self._random.randrange(1, 3))
            for name, since in waiting:
                self.report.recovered_s.setdefault(name, []).append(time.monotonic() - since)
            waiting.clear()
            at_once = True
            while at_once:
                if self._enough or self._made() >= self._updates - 2:
                    return False
                (fault,) = self._random.choices(self._faults, [fault.weight for fault in self._faults])
                await fault.inject(run, self._random)
                self.report.done[fault.name] += 1
                self._say(
                    f"{self.report.done.total()} of {self._wanted}: {fault.name}, update {self._made()}"
                )
                if fault.name == LAUNCHER_DIED:
                    return True
                waiting.append((fault.name, time.monotonic()))
                at_once = self._random.random() < _AT_ONCE

    async def _until_update(self, run: LaunchedRun, number: int) -> None:
        wanted = min(number, self._updates)
        await run.until(f"update {wanted}", lambda seen: self._made() >= wanted)

    @property
    def _enough(self) -> bool:
        return self.report.done.total() >= self._wanted

    def _made(self) -> int:
        return max((event.update for event in self._history.of(LearnerUpdate)), default=0)


async def do_faults(
    wanted: int,
    data: Path,
    *,
    seed: int = 0,
    kafka: KafkaCluster | None = None,
    small_disk: bool = False,
    only: Sequence[str] = (),
    updates: int = 60,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Do ``wanted`` faults to real runs, and prove each run with ``audit`` and ``verify``.

    Args:
        wanted: the number of faults.
        data: the data directory.
        seed: of the order and times of the faults, and of the runs.
        kafka: three brokers for the log; ``None``: the local log.
        small_disk: ``data`` is on a small file system, which may be filled.
        only: words in the names of the faults to do; empty: all.
        updates: updates of one run.
        say: called with a line after each fault.

    Raises:
        AssertionError: a run did not go on, or a proof found something.
    """
    possible = faults_for(kafka, data if small_disk else None)
    faults = [fault for fault in possible if not only or any(words in fault.name for words in only)]
    assert faults, f"no fault is called {only}; there are {[fault.name for fault in possible]}"
    location = "local" if kafka is None else f"kafka://{kafka.bootstrap}"
    with BadEndpoint(seed) as endpoint:
        chaos = Chaos(
            wanted,
            data,
            faults,
            seed=seed,
            location=location,
            endpoint=endpoint,
            updates=updates,
            say=say,
        )
        await chaos.run()
    return chaos.report
