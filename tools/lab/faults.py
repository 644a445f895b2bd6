"""Faults between the hosts of the lab, done one after another to a run that trains.

Each fault waits until the run has made updates after it. When all are done, the run is stopped in order and
proven (:mod:`tools.lab.proofs`). ``FAULTS`` has them by name.
"""

import asyncio
import itertools
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tools.lab.cluster import (
    ARCHIVES,
    BROKERS,
    DATA,
    RAY_HEAD,
    RAY_WORKERS,
    SHARED_ARCHIVE,
    Lab,
    LabError,
)
from tools.lab.hosts import Host
from tools.lab.proofs import await_archived, prove_run
from tools.lab.results import FaultResult
from tools.lab.watch import Watch
from unstable_stream.events import LearnerUpdate
from unstable_stream.log.stores.store import PATIENCE_S

DEADLINE_S: Final = 600.0
"""For each thing that is waited for; a machine with cores to spare needs a tenth."""
MOMENT_S: Final = 2.0
"""Shorter than every timeout: members of a group may be silent for ten seconds, Ray's machines for longer."""
LONG_S: Final = 80.0
"""Longer than Ray, the groups and transactions of Kafka and the delivery to its brokers wait: a minute."""
_ONE_WAY_S: Final = 30.0
_STORE_WAITS_S: Final = 10.0
_PATIENCES: Final = 3
"""Services are started again once when the store was away for so long; the second time ends the run."""
_MOST_ENDS: Final = 3
_RESUME: Final = re.compile(r"resume it with: (unstable-stream train --resume .+)")
_BUSY: Final = """
import http.server, sys
class Busy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(503)
        self.send_header("content-length", "0")
        self.send_header("connection", "close")
        self.end_headers()
    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Busy).serve_forever()
"""
"""A server that stands where the store was and answers every request with 503."""

_IN_COMMIT: Final = """
import os, signal, sys, time
from unstable_stream.log.stores.store import Store
table, server, deadline = Store(sys.argv[1]), int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
known = set(table.names())
while time.monotonic() < deadline:
    new = set(table.names()) - known
    if any(name.startswith("_delta_log/") for name in new):
        known |= new  # a commit is whole already
    elif new:
        os.kill(server, signal.SIGKILL)
        sys.exit(f"{len(new)} of its files were there, and its commit was not")
sys.exit("nobody committed")
"""
"""Kills the store when files of a table are there whose commit is not."""


class FaultError(RuntimeError):
    """A run did not go on after a fault, or did not say how to resume it."""


class Trial:
    """One run under faults."""

    def __init__(self, lab: Lab, watch: Watch, settings: Sequence[str], say: Callable[[str], None]) -> None:
        """Start the run."""
        self.lab = lab
        self.watch = watch
        self.result = FaultResult("start", "the run starts")
        self._say = say
        # It trains until all faults are done, unless it is told otherwise.
        endless = ("learner.iterations=1000000", *settings)
        self._settings = [argument for setting in endless for argument in ("--set", setting)]
        self._begun = self._ended = 0.0
        self._updates = 0
        """Those that had been seen when the fault began."""
        self._ends = 0
        self.repair: Callable[[], None] = lambda: None
        """What an operator does before the run can be resumed."""
        self.process = self._launch(lambda: lab.train(*self._settings))

    @property
    def command(self) -> str:
        """The command that resumes the run, as the documentation gives it."""
        return f"unstable-stream train --resume {self.watch.run_id} --data {DATA} --log {self.lab.log}"

    def _launch(self, start: Callable[[], "subprocess.Popen[bytes]"]) -> "subprocess.Popen[bytes]":
        path = self._log("train")
        self._from = path.stat().st_size if path.exists() else 0
        return start()

    def _log(self, name: str) -> Path:
        return self.lab.logs / f"{name}.log"

    def do(self, fault: "Fault") -> FaultResult:
        """Do one fault and wait until the run goes on; the result says what was seen, also if it does not."""
        self.result = FaultResult(fault.name, fault.what)
        self._ends = 0
        self._begun = self._ended = 0.0
        self.repair = lambda: None
        try:
            before = len(self.watch.updates)
            self.until("an update before the fault", lambda: len(self.watch.updates) > before)
            fault.do(self)
            self.recover()
        except (FaultError, LabError) as error:
            self.result.failure = str(error)
        return self.result

    def begin(self) -> None:
        """Note that the fault begins."""
        self._begun = time.monotonic()
        self._updates = len(self.watch.updates)
        self._say(f"{self.result.fault}: {self.result.what}")

    def over(self) -> None:
        """Note that the fault is over; what was lost for ever stays lost."""
        self._ended = time.monotonic()
        self.result.lasted_s = round(self._ended - self._begun, 1)
        self.result.updates_meanwhile = len(self.watch.updates) - self._updates

    def hold(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let the fault last, or until a condition is met."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))

    def recover(self) -> None:
        """Wait until the run has made an update that it had not begun before the fault was over.

        The first one that is seen may have been under way.
        """
        if self.result.next_update_s is not None:
            return

        def after() -> list[float]:
            return [seen.at for seen in self.watch.updates if seen.at > self._ended]

        self.until("two updates after the fault", lambda: len(after()) >= 2)
        times = [seen.at for seen in self.watch.updates]
        first = max(0, self._updates - 1)
        self.result.next_update_s = round(after()[0] - self._ended, 1)
        ends = [*times[first : times.index(after()[1]) + 1]]
        self.result.longest_pause_s = round(
            max(later - earlier for earlier, later in itertools.pairwise(ends)), 1
        )

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for a condition; a run that ended meanwhile, saying so, is resumed, and services that ended
        are started again.

        Raises:
            FaultError: at the deadline, or the run did not say how to go on.
        """
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            lasting = self._begun and not self._ended
            if not lasting:
                self._start_services_again()
                if self.process.poll() is not None:
                    self._resume()
            if time.monotonic() > deadline:
                raise FaultError(f"{what}: not within {DEADLINE_S:g} s\n{self.lab.last_words('train', 30)}")
            time.sleep(0.1)

    def _start_services_again(self) -> None:
        """Start processors and archivers that ended, as a Deployment does, and note it."""
        for name in ("processors", *self.lab.archivers):
            status = self.lab.ended(name)
            if status is not None:
                self.note(f"{name} ended with status {status} and was started again")
                self.lab.start_service(name)

    def note(self, said: str) -> None:
        """Add to what the table says of the fault."""
        self.result.note += f"{'; ' * bool(self.result.note)}{said}"

    def words(self) -> str:
        """Return what the launcher has printed since it was started."""
        return self._log("train").read_bytes()[self._from :].decode(errors="replace")

    def _resume(self) -> None:
        status, words = self.process.returncode, self.words()
        self._ends += 1
        found = _RESUME.search(words)
        if status == -signal.SIGKILL:
            command, said = self.command, "killed with its host"
        elif found is None or self._ends > _MOST_ENDS:
            raise FaultError(f"the run ended {self._ends} times, now with status {status}:\n{words[-3000:]}")
        else:
            command = found[1].strip()
            said = next((line for line in words.splitlines() if line.startswith("error: ")), words[-500:])
        self.result.ended.append(said)
        self._say(f"the run ended ({status}): {said}")
        self.repair()
        self._say(command)
        self.process = self._launch(lambda: self.lab.resume(command))

    def stop(self) -> None:
        """Stop the run in order, if it has not ended."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise FaultError(f"the run does not stop:\n{self.lab.last_words('train', 30)}")
            time.sleep(0.1)

    @contextmanager
    def cut(self, host: Host) -> Iterator[None]:
        """Take a host's link down, and up again."""
        host.disconnect()
        try:
            yield
        finally:
            host.connect()

    def archiver_waits(self, name: str) -> int:
        """Return how often an archiver has said that it waits for its archive."""
        return self._log(name).read_bytes().count(b"the archive cannot be used now")

    def worker(self, *, learner: bool) -> str:
        """Return the name of a Ray worker's host that has an actor, the learner's or not, once one has.

        A learner that Ray has moved to the head's host is brought back first: the run is stopped and resumed.
        """
        if learner and "LearnerActor" in self.lab.actors()[RAY_HEAD]:
            self.stop()
            self.process = self._launch(lambda: self.lab.resume(self.command))
            self.note("the run was resumed before, which took the learner off the head")
        found: list[str] = []

        def look() -> bool:
            actors = self.lab.actors()
            found[:] = [
                name for name in RAY_WORKERS if actors[name] and ("LearnerActor" in actors[name]) is learner
            ]
            return bool(found)

        self.until("a worker's host with" + ("" if learner else "out") + " the learner", look)
        self.note(f"on it: {', '.join(self.lab.actors()[found[0]])}")
        return found[0]


class Fault:
    """A fault with a name for the command line and its description in words."""

    def __init__(
        self, name: str, what: str, do: Callable[[Trial], None], *, archives: Sequence[str] = tuple(ARCHIVES)
    ) -> None:
        self.name = name
        self.what = what
        self.do = do
        self.archives = archives
        """The kinds of archive of a lab in which it can be done."""


def _links_for_a_moment(trial: Trial) -> None:
    trial.begin()
    for host in trial.lab.hosts:
        with trial.cut(host):
            trial.hold(MOMENT_S)
    trial.over()


def _two_launchers(trial: Trial) -> None:
    trial.begin()
    first, command = trial.process, trial.command
    trial.process = second = trial.lab.resume(command, host=RAY_WORKERS[0], log="second")
    trial.until("the end of the first launcher", lambda: first.poll() is not None)
    trial.over()
    words = trial.words()
    if "was taken over by another launcher" not in words:
        raise FaultError(f"the first launcher ended with status {first.returncode}:\n{words[-3000:]}")
    trial.result.ended.append(next(line for line in words.splitlines() if line.startswith("error: ")))
    trial.recover()
    # Back, so that the next fault finds the launcher where it was.
    trial.process = trial._launch(lambda: trial.lab.resume(command))
    trial.until("the end of the second launcher", lambda: second.poll() is not None)
    if "was taken over by another launcher" not in trial.lab.last_words("second"):
        raise FaultError(f"the second launcher: {trial.lab.last_words('second')}")


def _store_answers_503(trial: Trial) -> None:
    host, store = trial.lab.hosts["store"], trial.lab.store
    trial.begin()
    store.kill()
    busy = host.start(
        sys.executable, "-c", _BUSY, host.address, str(store.port), log=trial.lab.logs / "busy.log"
    )
    try:
        _await_waiting(trial)
    finally:
        busy.kill()
        busy.wait()
        store.up()
    trial.over()


def _store_is_away(trial: Trial, wait: Callable[[Trial], object] | None = None) -> None:
    host, store = trial.lab.hosts["store"], trial.lab.store
    trial.begin()
    with trial.cut(host):
        store.kill()
        (wait or _await_waiting)(trial)
    store.up()
    trial.over()


def _store_is_away_for_long(trial: Trial) -> None:
    _store_is_away(
        trial,
        lambda trial: trial.hold(_PATIENCES * PATIENCE_S, lambda: trial.process.poll() is not None),
    )


def _store_goes_in_an_archivers_commit(trial: Trial) -> None:
    host, store = trial.lab.hosts["store"], trial.lab.store
    log = trial.lab.logs / "in-commit.log"
    told = {name: trial.archiver_waits(name) for name in trial.lab.archivers}
    watcher = host.start(
        "env", *(f"{name}={value}" for name, value in store.environment.items()),
        sys.executable, "-c", _IN_COMMIT, SHARED_ARCHIVE, str(store.pid), str(DEADLINE_S), log=log,
    )  # fmt: skip
    watcher.wait()
    if not store.gone:
        raise FaultError(f"no commit of an archiver to disturb:\n{trial.lab.last_words('in-commit')}")
    trial.begin()
    with trial.cut(host):
        store.kill()  # it is, and is forgotten
        trial.until(
            "an archiver that waits for the store",
            lambda: any(trial.archiver_waits(name) > before for name, before in told.items()),
        )
    store.up()
    trial.over()
    trial.note(trial.lab.last_words("in-commit", 1))
    _note_archived(trial)


def _note_archived(trial: Trial) -> None:
    took_s = asyncio.run(await_archived(trial.lab))
    trial.note(f"all was archived {took_s:.0f} s after its end")


def _archiver_vanishes(trial: Trial) -> None:
    name = trial.lab.archivers[0]
    host = trial.lab.hosts[name]
    trial.begin()
    host.vanish()
    before = len(trial.watch.updates)
    trial.until("two updates without the archiver", lambda: len(trial.watch.updates) >= before + 2)
    host.connect()
    trial.lab.start_service(name)
    trial.over()
    _note_archived(trial)


def _await_waiting(trial: Trial) -> None:
    waits = trial.watch.store_waits_s
    waits.clear()
    trial.until("a service that waits for the store", lambda: max(waits.values(), default=0) > _STORE_WAITS_S)


def _broker_is_lost_in_a_commit(trial: Trial) -> None:
    leader, vanished = asyncio.run(_vanish_in_commit(trial))
    trial.over()
    trial.note(f"{leader}, which led the partition; {vanished}")
    trial.recover()
    trial.lab.hosts[leader].connect()
    trial.lab.start_broker(leader)


async def _vanish_in_commit(trial: Trial) -> tuple[str, str]:
    """Let the leader vanish as soon as a record of the learner's next transaction is on it."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=trial.lab.kafka.bootstrap, isolation_level="read_uncommitted", fetch_max_wait_ms=50
    )
    await consumer.start()
    try:
        partitions = [
            TopicPartition(LearnerUpdate.TOPIC, number)
            for number in await _partitions(consumer, LearnerUpdate.TOPIC)
        ]
        consumer.assign(partitions)
        await consumer.seek_to_end()
        deadline = time.monotonic() + DEADLINE_S
        while not (records := await consumer.getmany(timeout_ms=1000)):
            if time.monotonic() > deadline or trial.process.poll() is not None:
                raise FaultError(f"no update to disturb:\n{trial.lab.last_words('train', 30)}")
        trial.begin()
        (partition, found), *_ = records.items()
        node = consumer._client.cluster.leader_for_partition(partition)
        host = BROKERS[node - 1]
        stable = consumer.last_stable_offset(partition)
        trial.lab.hosts[host].vanish()
        open_ = stable is not None and found[-1].offset >= stable
        state = "its transaction was open" if open_ else "its transaction had just ended"
        return host, f"the update's record was on it, {state}"
    finally:
        with suppress(Exception):
            await asyncio.wait_for(consumer.stop(), 10)


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> list[int]:
    while not (found := consumer.partitions_for_topic(topic)):
        await consumer._client.force_metadata_update()
        await consumer.topics()
    return sorted(found)


def _broker_is_heard_by_no_broker(trial: Trial) -> None:
    name = BROKERS[1]
    host = trial.lab.hosts[name]
    others = [trial.lab.hosts[other] for other in BROKERS if other != name]
    trial.begin()
    for other in others:
        host.stop_sending_to(other)
    trial.hold(_ONE_WAY_S)
    for other in others:
        host.send_again_to(other)
    trial.over()


def _broker_is_cut_off(trial: Trial) -> None:
    trial.begin()
    with trial.cut(trial.lab.hosts[BROKERS[2]]):
        trial.hold(LONG_S)
    trial.over()


def _processors_vanish(trial: Trial) -> None:
    host = trial.lab.hosts["processors"]
    trial.begin()
    host.vanish()
    host.connect()
    trial.lab.start_service("processors")
    trial.over()


def _processors_are_cut_off(trial: Trial) -> None:
    trial.begin()
    with trial.cut(trial.lab.hosts["processors"]):
        trial.hold(LONG_S)
    trial.over()
    began = time.monotonic()
    trial.until(
        "an update after the processors are back",
        lambda: any(seen.at > began for seen in trial.watch.updates),
    )


def _worker_vanishes(trial: Trial, *, learner: bool) -> None:
    name = trial.worker(learner=learner)
    host = trial.lab.hosts[name]
    trial.begin()
    host.vanish()
    trial.over()
    trial.recover()
    trial.lab.await_ray(len(RAY_WORKERS))
    host.connect()
    _rejoin(trial, name)


def _worker_is_cut_off(trial: Trial) -> None:
    name = trial.worker(learner=True)
    trial.begin()
    with trial.cut(trial.lab.hosts[name]):
        trial.hold(LONG_S)
        trial.lab.await_ray(len(RAY_WORKERS))
    trial.over()
    trial.recover()
    _end_of_the_fenced(trial, name)
    _rejoin(trial, name)


def _worker_is_not_heard(trial: Trial) -> None:
    name = trial.worker(learner=False)
    host, head = trial.lab.hosts[name], trial.lab.hosts[RAY_HEAD]
    trial.begin()
    host.stop_sending_to(head)
    try:
        trial.lab.await_ray(len(RAY_WORKERS))
    finally:
        host.send_again_to(head)
    trial.over()
    trial.recover()
    _end_of_the_fenced(trial, name)
    _rejoin(trial, name)


def _end_of_the_fenced(trial: Trial, name: str) -> None:
    """Wait until the processes of a machine that Ray has given up have ended by themselves."""
    trial.until(f"the end of Ray on {name}", lambda: trial.lab.ended(name) is not None)
    trial.until(f"the end of all actors on {name}", lambda: not trial.lab.actors()[name])
    trial.note("its processes ended by themselves")


def _rejoin(trial: Trial, name: str) -> None:
    trial.lab.start_ray_worker(name)
    trial.lab.await_ray(1 + len(RAY_WORKERS))


def _head_is_cut_off(trial: Trial) -> None:
    def repair() -> None:
        for name in RAY_WORKERS:
            _end_of_the_fenced(trial, name)
            trial.lab.start_ray_worker(name)
        trial.lab.await_ray(1 + len(RAY_WORKERS))

    trial.repair = repair
    trial.begin()
    with trial.cut(trial.lab.hosts[RAY_HEAD]):
        trial.hold(LONG_S)
    trial.over()
    trial.recover()
    # A machine may hear late that it was given up, and then ends.
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for name in RAY_WORKERS:
            if trial.lab.ended(name) is not None:
                trial.lab.start_ray_worker(name)
        try:
            trial.lab.await_ray(1 + len(RAY_WORKERS), within_s=30)
            return
        except LabError:
            if time.monotonic() > deadline:
                raise


def _ray_control_dies(trial: Trial) -> None:
    trial.repair = lambda: _restart_ray(trial)
    trial.begin()
    trial.lab.kill_ray_control()
    trial.over()


def _head_vanishes(trial: Trial) -> None:
    trial.repair = lambda: _restart_ray(trial)
    trial.begin()
    trial.lab.hosts[RAY_HEAD].vanish()
    trial.over()


def _restart_ray(trial: Trial) -> None:
    """Start Ray's machines anew, all of them: a head that was lost does not take the old workers back."""
    for name in (RAY_HEAD, *RAY_WORKERS):
        trial.lab.hosts[name].vanish()
        trial.lab.hosts[name].connect()
    trial.lab.start_ray_head()
    for name in RAY_WORKERS:
        trial.lab.start_ray_worker(name)
    trial.lab.await_ray(1 + len(RAY_WORKERS))


FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault
    for fault in (
        Fault(
            "links-moment",
            f"the link of each host in turn is down for {MOMENT_S:g} s",
            _links_for_a_moment,
        ),
        Fault("store-503", "the store answers 503 to all until somebody waits for it", _store_answers_503),
        Fault("store-away", "the store is killed and cut off until somebody waits for it", _store_is_away),
        Fault(
            "store-away-long",
            "the store is killed and cut off until nobody waits any more: the run has ended",
            _store_is_away_for_long,
        ),
        Fault(
            "store-in-archive-commit",
            "the store is killed and cut off while an archiver of a shared archive commits",
            _store_goes_in_an_archivers_commit,
            archives=("shared",),
        ),
        Fault("archiver-vanishes", "the host of an archiver vanishes and is back", _archiver_vanishes),
        Fault("two-launchers", "a second launcher resumes the run on another host", _two_launchers),
        Fault("broker-in-commit", "a broker vanishes during a commit", _broker_is_lost_in_a_commit),
        Fault(
            "broker-one-way",
            f"for {_ONE_WAY_S:g} s no other broker hears a broker that hears them",
            _broker_is_heard_by_no_broker,
        ),
        Fault("broker-cut", f"a broker's link is down for {LONG_S:g} s", _broker_is_cut_off),
        Fault("processors-vanish", "the host of the processors vanishes and is back", _processors_vanish),
        Fault("processors-cut", f"the processors' link is down for {LONG_S:g} s", _processors_are_cut_off),
        Fault("worker-vanishes", "a Ray worker's host vanishes", partial(_worker_vanishes, learner=False)),
        Fault("learner-vanishes", "the learner's host vanishes", partial(_worker_vanishes, learner=True)),
        Fault("worker-one-way", "Ray's head hears nothing of a worker that hears it", _worker_is_not_heard),
        Fault("learner-cut", f"the link of the learner's host is down for {LONG_S:g} s", _worker_is_cut_off),
        Fault("head-cut", f"the link of Ray's head is down for {LONG_S:g} s", _head_is_cut_off),
        Fault("ray-control-dies", "kill -9 of Ray's control process", _ray_control_dies),
        Fault("head-vanishes", "the host of Ray's head and the launcher vanishes", _head_vanishes),
    )
}


def do_faults(
    lab: Lab,
    faults: Sequence[Fault],
    settings: Sequence[str],
    say: Callable[[str], None],
    *,
    within_s: float = float("inf"),
) -> list[FaultResult]:
    """Train a run, do faults to it one after another, stop it, and prove it.

    It ends with the first fault after which the run does not go on; what was done before is proven then, too.

    Args:
        lab: started, and without a run.
        faults: what is done.
        settings: added to those of ``run.toml``, e.g. ``learner.batch_size=64``.
        say: is told what is done.
        within_s: after so many seconds no further fault is begun.
    """
    results: list[FaultResult] = []
    until = time.monotonic() + within_s
    with Watch(lab.log) as watch:
        trial = Trial(lab, watch, settings, say)
        for fault in faults:
            if time.monotonic() > until:
                say(f"{fault.name} is not begun: the time is up")
                break
            results.append(result := trial.do(fault))
            say(result.line())
            if result.failure:
                say(f"{fault.name} failed: {result.failure}")
                break
        done = [result for result in results if not result.failure]
        try:
            trial.stop()
        except FaultError as error:
            say(str(error))
            for result in done:
                result.failure = str(error)
            return results
        for proof in prove_run(lab):
            say(f"{proof.name}: {proof.verdict}")
            for result in done:
                setattr(result, proof.name, proof.verdict)
                if proof.failed:
                    result.failure = f"{proof.name}: {proof.verdict}\n{proof.said}"
        for result in done:
            result.trained_twice = len(watch.trained_twice)
            if watch.trained_twice:
                result.failure = f"{len(watch.trained_twice)} steps were trained twice"
    return results
