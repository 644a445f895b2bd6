"""Train one run and do faults to it; then prove that nothing was lost and nothing done twice."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field

from tests.chaos.endpoint import BadEndpoint
from tests.chaos.faults import HUNG, Fault, Orders
from tests.chaos.forked import ForkedRun
from tests.whole_run.processes import History, LaunchedRun
from unstable_stream.events import LearnerUpdate, RunFinished, RunStarted

KEY_ENV = "CHAOS_ENDPOINT_KEY"
"""The environment variable with the key of the failing endpoint; it takes any."""
_LIGHT = (
    "learner.batch_size=32",
    "learner.mini_batch_size=32",
    "collector.num_workers=8",
    "collector.num_eval_workers=2",
    "evaluation.first_last_games=2",
)
_BRANCHES = (
    "collector.branches=3",
    "collector.branch_share=0.3",
    'rewards.sampling=[{type="BranchAdvantage"}, {type="NormalizeRewardsByEnv"}]',
)
_IMITATE = ("imitate", "--where", "kind = 'scripted'")
KINDS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "self-play": (("train",), ()),
    "branches": (("train",), _BRANCHES),
    "imitation": (_IMITATE, ()),
    "self-play again": (("train",), ()),
}
"""What the runs of a data directory do, one after the other, by command and settings: the third learns from
games of the others.
"""
_HUNG_S = 8
_AT_ONCE = 0.5
"""The share of faults after which the next one comes within seconds, not after an update."""
_AT_ONCE_S = 3.0
_MOST_ENDS_IN_A_ROW = 3
LOG_AWAY = "the log did not answer"
RAY_AWAY = "Ray did not start"
"""Why a run ended that no fault had to end: a busy machine was too slow for it."""


class RunResult(BaseModel):
    """What was done to one run, and what came of it."""

    seed: int
    log: str
    backend: str
    kind: str = "self-play"
    """One of :data:`KINDS`."""
    run_id: str = ""
    done: Counter[str] = Field(default_factory=Counter)
    """Faults by name."""
    steps: Counter[str] = Field(default_factory=Counter)
    """The commit steps at which processes were killed."""
    ended: Counter[str] = Field(default_factory=Counter)
    """Faults with which the run ended, saying so, and was resumed."""
    recovered_s: dict[str, list[float]] = Field(default_factory=dict)
    """By fault, the seconds until the next update was published."""
    updates: int = 0
    endpoint: Counter[str] = Field(default_factory=Counter)
    """Requests to the failing endpoint, by what they got."""
    seconds: float = 0.0
    failure: str = ""
    """Why it did not go on, or what a proof found; empty: it was proven."""


@dataclass(frozen=True)
class Setting:
    """Where runs are trained, and what is done to them."""

    data: Path
    location: str
    backend: str
    faults: Sequence[Fault]
    orders: Orders
    endpoint: BadEndpoint
    updates: int
    until: float
    """Unix time after which no further fault is done: the run is stopped in order, and proven."""
    say: Callable[[str], None]


async def do_faults_to_one_run(
    setting: Setting, history: History, kind: str, seed: int, most: int
) -> RunResult:
    """Train a run of a kind under at most so many faults; ``failure`` tells what went wrong."""
    began = time.monotonic()
    setting.endpoint.answered.clear()
    chaos = _Chaos(setting, history, kind, seed, most)
    try:
        await chaos.run()
    except (AssertionError, TimeoutError) as error:
        chaos.result.failure = f"{type(error).__name__}: {error}"
    chaos.result.endpoint = Counter(setting.endpoint.answered)
    chaos.result.seconds = round(time.monotonic() - began, 1)
    return chaos.result


class _Chaos:
    def __init__(self, setting: Setting, history: History, kind: str, seed: int, most: int) -> None:
        self._setting = setting
        self._history = history
        self._most = most
        self._random = random.Random(seed)
        self._ends_in_a_row = 0
        self._may_end: list[str] = []
        """Faults since the run was started with which it may end, also after an update that was under way."""
        self._waiting: list[tuple[str, float]] = []
        """Faults since the last update, and when each was over."""
        log = setting.location.partition(":")[0]
        self.result = RunResult(seed=seed, log=log, backend=setting.backend, kind=kind)

    async def run(self) -> None:
        setting, seed = self._setting, self.result.seed
        opponents = (
            '{name="random-legal"}',
            f'{{name="failing", kind="openai", base_url="{setting.endpoint.url}", api_key_env="{KEY_ENV}"}}',
        )
        kind = ForkedRun if setting.backend == "inline" else LaunchedRun
        command, settings = KINDS[self.result.kind]
        run = kind.train(
            setting.data,
            f"name=chaos-{seed}",
            f"seed={seed}",
            f"backend={setting.backend}",
            f"learner.iterations={setting.updates}",
            *_LIGHT,
            *settings,
            "learner.save_every=2",
            f"collector.env_step_timeout_s={_HUNG_S}",
            "max_restarts=100000",
            f"evaluation.opponents=[{', '.join(opponents)}]",
            log=setting.location,
            history=self._history,
            command=command,
        )
        while True:
            async with run:
                await run.until("its start", lambda seen: bool(seen.of(RunStarted)))
                self.result.run_id = self._history.of(RunStarted)[0].run_id
                if await self._do_some(run):
                    await self._history.read_all()
                    if [end.outcome for end in self._history.of(RunFinished)][-1:] == ["completed"]:
                        status = 0  # the launcher died after that
                        break
                    run = kind.resume(run, self.result.run_id)
                    continue
                # Runs end in order, too: some at once, the others when they have made their updates.
                over = time.time() >= setting.until
                stopped = run.popen.poll() is None and (over or self._random.random() < 0.5)
                if stopped:
                    run.interrupt()
                status = await run.end()
                in_order = status in ((130, 0) if stopped else (0,))
                # The last fault may end it after its last awaited update, too.
                if not in_order and self._may_have_ended(run):
                    run = kind.resume(run, self.result.run_id)
                    continue
                assert in_order, f"status {status}\n{run.told()}"
                if self._history.of(RunFinished):
                    break
                # It was stopped while it still started again, with all updates made: nothing was at work.
                assert status == 130, f"the run ended with {status} and recorded no end\n{run.told()}"
                run = kind.resume(run, self.result.run_id)
        self.result.updates = self._made()
        outcome = self._history.of(RunFinished)[-1].outcome
        assert outcome == ("completed" if status == 0 else "stopped"), outcome
        setting.orders.withdraw()  # an environment that was to raise until now would do so as verify plays
        for proof in ("audit", "verify"):
            found = await run.command(proof, self.result.run_id)
            assert found.returncode == 0, f"{proof} {self.result.run_id}:\n{found.stdout}{found.stderr}"

    async def _do_some(self, run: LaunchedRun) -> bool:
        """Do faults until the launcher died (``True``), the run nears its end, or there were enough."""
        self._may_end.clear()
        at_once = bool(self._waiting) and self._random.random() < _AT_ONCE
        while True:
            if at_once:
                await asyncio.sleep(self._random.uniform(0, _AT_ONCE_S))
            elif await self._until_update(run, self._made() + self._random.randrange(1, 3)):
                return True
            enough = self.result.done.total() >= self._most or time.time() >= self._setting.until
            if enough or self._made() >= self._setting.updates - 2:
                return bool(self._waiting) and await self._until_update(run, self._made() + 1)
            if run.popen.poll() is not None:
                at_once = False  # nothing is left to do a fault to: see why
                continue
            choices = self._setting.faults
            (fault,) = self._random.choices(choices, [fault.weight for fault in choices])
            step = await fault.inject(run, self._random)
            if step is None:
                at_once = False  # the run stands still, or has ended: wait for it
                continue
            self.result.done[fault.name] += 1
            if step:
                self.result.steps[step] += 1
            self._setting.say(f"update {self._made()}: {fault.name} {step}")
            self._waiting.append((fault.name, time.monotonic()))
            if fault.may_end:
                self._may_end.append(fault.name)
            if run.popen.poll() == -signal.SIGKILL:
                return True
            at_once = run.popen.poll() is None and self._random.random() < _AT_ONCE

    async def _until_update(self, run: LaunchedRun, number: int) -> bool:
        """Return once an update is published; ``True`` if the run ended instead, as it may."""
        wanted = min(number, self._setting.updates)
        try:
            await run.until(f"update {wanted}", lambda seen: self._made() >= wanted)
        except AssertionError:
            if run.popen.poll() is None or not self._may_have_ended(run):
                raise
            return True
        self._ends_in_a_row = 0
        for name, since in self._waiting:
            self.result.recovered_s.setdefault(name, []).append(round(time.monotonic() - since, 1))
        self._waiting.clear()
        return False

    def _may_have_ended(self, run: LaunchedRun) -> bool:
        """Return whether a fault explains the end of a run, as what it said last tells, and count it."""
        said = run.stderr.read_text()[-4000:]
        culprits: list[str] = []
        if "space left" in said or HUNG in said:
            culprits += self._may_end
        # A run that is one process restarts no service: it ends with a log that does not answer in time.
        if self._setting.backend == "inline" and "error: kafka://" in said:
            culprits.append(LOG_AWAY)
        if f"stopped: {RAY_AWAY}" in said:
            culprits.append(RAY_AWAY)
        if not culprits or self._ends_in_a_row == _MOST_ENDS_IN_A_ROW:
            return False
        self._ends_in_a_row += 1
        self.result.ended[culprits[-1]] += 1
        return True

    def _made(self) -> int:
        return max((event.update for event in self._history.of(LearnerUpdate)), default=0)
