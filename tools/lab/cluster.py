"""A cluster in a box: a run over nine hosts without a shared disk, and the proof that nothing was lost.

Usage: python -m tools.lab.cluster [--updates 20] [--archive shared] [--faults all] [--directory DIR] [--keep]

Three Kafka brokers, a store with the S3 protocol, a Ray head and two Ray workers, a host for the processors
and one for the archiver: each a network namespace with an address, a name and a disk of its own
(:mod:`tools.lab.hosts`). The run of ``run.toml`` trains through them; then it is proven
(:mod:`tools.lab.proofs`). It ends by itself and leaves nothing behind. Needs root on Linux, Java 17 and
Maven.

With ``--archive shared`` there are two archivers, on a host each, which fill one archive in the store.

With ``--faults`` hosts, links, brokers and the store fail while the run trains (:mod:`tools.lab.faults`).
"""

import argparse
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from infra.kafka.brokers import KafkaCluster, KafkaUnavailableError
from infra.kafka.brokers import why_unavailable as why_no_kafka
from infra.s3.server import S3Server, S3UnavailableError
from infra.s3.server import why_unavailable as why_no_store
from tools.lab.hosts import REPOSITORY, Hosts, HostsUnavailableError
from tools.lab.hosts import why_unavailable as why_no_hosts
from unstable_stream.log.stores.archive_address import ARCHIVE_VARIABLE

if TYPE_CHECKING:
    from tools.lab.faults import Fault

RUN: Final = Path(__file__).with_name("run.toml")
LOCATIONS: Final = (
    "--set",
    'learner.ckpt_root="s3://lab/runs"',
    "--set",
    'external=["processors", "archiver"]',
)
"""The places of what is not on the machine of the run, beside the log."""
DATA: Final = Path("/tmp/data")
"""The data directory of each host: on its own disk."""
RAY_HEAD: Final = "ray-head"
RAY_WORKERS: Final = ("ray-1", "ray-2")
BROKERS: Final = ("kafka-1", "kafka-2", "kafka-3")
ARCHIVES: Final = {"file": ("archiver",), "shared": ("archiver", "archiver-2")}
"""The hosts of archivers by the kind of archive: a file on the disk of one, or a table in the store."""
SHARED_ARCHIVE: Final = "s3://lab/archive"
_BUCKET: Final = "from unstable_stream.log.stores import Store; Store('s3://lab').write('made', b'')"
_BIN: Final = Path(sys.executable).parent
_UNSTABLE: Final = _BIN / "unstable-stream"
_RAY_PORT: Final = 6379
_START_S: Final = 300.0
_RAY: Final = (_BIN / "ray", "start", "--block", "--num-cpus=1", "--object-store-memory=134217728")
_RAY_STARTS: Final = 5
_RAY_STARTED: Final = b"Ray runtime started."
_COUNTED: Final = """
import sys, time, ray
deadline = time.monotonic() + float(sys.argv[3])
while not ray.is_initialized():
    try:
        ray.init(address=sys.argv[1], log_to_driver=False)
    except ConnectionError:  # the head answers before its own machine is in
        if time.monotonic() > deadline:
            raise
while (found := sum(node["Alive"] for node in ray.nodes())) != int(sys.argv[2]):
    if time.monotonic() > deadline:
        sys.exit(f"Ray has {found} machines, not {sys.argv[2]}")
    time.sleep(0.2)
"""


class LabError(RuntimeError):
    """A part of the lab did not start; the message has its last words."""


def why_unavailable() -> str | None:
    """Return what is missing to make the lab here, with what mends it; ``None``: nothing."""
    return why_no_hosts() or why_no_kafka() or why_no_store()


class Lab:
    """The hosts and what runs on them."""

    def __init__(
        self,
        directory: Path,
        *,
        archive: str = "file",
        network: str | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Prepare.

        Args:
            directory: gets the hosts' disks and their logs.
            archive: one of ``ARCHIVES``.
            network: of the hosts, e.g. ``10.213.7.0/24``; by default one that is free on this machine.
            say: is told what is done.

        Raises:
            LabError: the directory holds something: the disks of an earlier lab, perhaps.
        """
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise LabError(f"{directory} is not an empty directory: remove it, or name another one")
        self.directory = directory
        self.logs = directory / "logs"
        self.shared = archive == "shared"
        """Whether the archive is in the store."""
        self.archivers = ARCHIVES[archive]
        self._say = say
        self._disks = directory / "brokers"
        self._stored = directory / "store"
        for path in (self.logs, self._disks, self._stored):
            path.mkdir(parents=True)
        token = secrets.token_hex(32)
        self.hosts = Hosts(
            directory / "hosts",
            shared=[self._disks, self._stored],
            environment={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"},
            network=network,
        )
        self._resources = contextlib.ExitStack()
        self._standing: dict[str, subprocess.Popen[bytes]] = {}
        self.kafka: KafkaCluster
        self.store: S3Server

    @property
    def log(self) -> str:
        """``--log`` of every service."""
        return f"kafka://{self.kafka.bootstrap}"

    @property
    def ray_address(self) -> str:
        """``RAY_ADDRESS`` of whoever uses the Ray cluster."""
        return f"{self.hosts['ray-head'].address}:{_RAY_PORT}"

    def __enter__(self) -> "Lab":
        """Start all parts.

        Raises:
            LabError, HostsUnavailableError, KafkaUnavailableError, S3UnavailableError: see the message.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.hosts)
            self._start_brokers(stack)
            self._start_store(stack)
            self._start_ray()
            self._start_services()
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self._resources.close()

    def train(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start the run on the Ray head, with its locations; its output goes to ``train.log``."""
        locations = [f"--log={self.log}", *LOCATIONS]
        return self._launch(
            RAY_HEAD, "train", str(RUN.relative_to(REPOSITORY)), f"--data={DATA}", *locations, *arguments
        )

    def resume(self, command: str, *, host: str = RAY_HEAD, log: str = "train") -> "subprocess.Popen[bytes]":
        """Run the command with which a run is resumed, as it was printed, on a Ray host."""
        program, *arguments = shlex.split(command)
        if program != _UNSTABLE.name:
            raise LabError(f"not a command of this package: {command}")
        return self._launch(host, *arguments, log=log)

    def _launch(self, host: str, *arguments: str, log: str = "train") -> "subprocess.Popen[bytes]":
        return self.hosts[host].start(
            "env", f"RAY_ADDRESS={self.ray_address}", _UNSTABLE, *arguments, log=self.logs / f"{log}.log"
        )

    def prove(self, command: str, *, timeout_s: float = 600.0) -> tuple[int, str]:
        """Run ``audit`` or ``verify`` on the archiver's host, which has the log and the store alone."""
        done = self.hosts["archiver"].run(
            _UNSTABLE, command, RUN.stem, "--log", self.log, "--data", DATA, timeout_s=timeout_s
        )
        return done.returncode, done.stdout

    def stop_archivers(self, timeout_s: float) -> None:
        """End the archivers in order; those that have ended before stay so.

        Raises:
            LabError: one does not stop.
        """
        for name in self.archivers:
            if self.ended(name) is None:
                self._standing[name].send_signal(signal.SIGTERM)
        for name in self.archivers:
            try:
                self._standing[name].wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise LabError(f"{name} does not stop:\n{self.last_words(name)}") from None

    def archive_rest(self, timeout_s: float) -> None:
        """Archive what the log holds and the archive does not; no archiver runs.

        Raises:
            LabError: it failed.
        """
        done = self.hosts["archiver"].run(
            _UNSTABLE, "archive", "--log", self.log, "--data", DATA, timeout_s=timeout_s
        )
        if done.returncode:
            raise LabError(f"the rest cannot be archived:\n{done.stdout}")

    def ask_archive(self, sql: str, *, timeout_s: float = 300.0) -> str:
        """Return what ``unstable-stream sql`` says on the archiver's host, as CSV.

        Raises:
            LabError: it failed.
        """
        done = self.hosts["archiver"].run(_UNSTABLE, "sql", sql, "--csv", "--data", DATA, timeout_s=timeout_s)
        if done.returncode:
            raise LabError(f"the archive cannot be asked:\n{done.stdout}")
        return done.stdout

    def actors(self) -> dict[str, list[str]]:
        """Return the Ray actors that are on each Ray host now, e.g. ``["EngineActor", "RolloutActor"]``."""
        found = {}
        for name in (RAY_HEAD, *RAY_WORKERS):
            titles = (_title(pid) for pid in self.hosts[name].pids())
            found[name] = sorted(
                title.removeprefix("ray::").partition(".")[0]
                for title in titles
                if title.startswith("ray::") and "Actor" in title
            )
        return found

    def last_words(self, name: str, lines: int = 15) -> str:
        """Return the end of a log."""
        path = self.logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.is_file() else ""

    def start_ray_head(self) -> None:
        """Start Ray on its head, and wait until workers may join.

        Its control process answers before its own machine is in, and refuses others until then.
        """
        self._start_ray_on(RAY_HEAD, "--head", "--include-dashboard=false", f"--port={_RAY_PORT}")

    def start_ray_worker(self, name: str) -> None:
        """Start Ray on one of its workers, and wait until that has joined."""
        self._start_ray_on(name, f"--address={self.ray_address}")

    def _start_ray_on(self, name: str, *arguments: str) -> None:
        host = self.hosts[name]
        log = self.logs / f"{name}.log"
        for _ in range(_RAY_STARTS):
            told = log.stat().st_size if log.exists() else 0
            started = host.start(*_RAY, *arguments, f"--node-ip-address={host.address}", log=log)
            self._standing[name] = started
            deadline = time.monotonic() + _START_S
            while started.poll() is None and time.monotonic() < deadline:
                if _RAY_STARTED in log.read_bytes()[told:]:
                    return
                time.sleep(0.2)
            # It gives itself half a minute, also on a busy machine.
            host.vanish()
            host.connect()
        raise LabError(f"Ray did not start on {name}; its log ends with:\n{self.last_words(name)}")

    def await_ray(self, machines: int, *, within_s: float = _START_S) -> None:
        """Wait until so many machines are in Ray's cluster, as its head sees it.

        Raises:
            LabError: there are others for that long.
        """
        counted = self.hosts[RAY_HEAD].run(
            sys.executable, "-c", _COUNTED, self.ray_address, str(machines), str(within_s),
            timeout_s=_START_S + within_s,
        )  # fmt: skip
        if counted.returncode:
            words = "\n".join(self.last_words(name) for name in RAY_WORKERS)
            raise LabError(f"{counted.stdout}\n{words}")

    def start_service(self, name: str) -> None:
        """Start ``processors`` or an archiver on the host of this name."""
        command = ("archive", "--follow") if name in self.archivers else (name,)
        self._standing[name] = self.hosts[name].start(
            _UNSTABLE, *command, "--log", self.log, "--data", DATA, log=self.logs / f"{name}.log"
        )

    def ended(self, name: str) -> int | None:
        """Return the status with which Ray or a service on a host ended; ``None``: it runs."""
        return self._standing[name].poll()

    def kill_ray_control(self) -> None:
        """kill -9 of Ray's control process (GCS), which knows all machines and actors."""
        found = [pid for pid in self.hosts[RAY_HEAD].pids() if _title(pid).endswith("/gcs_server")]
        if len(found) != 1:
            raise LabError(f"{len(found)} processes are Ray's control process")
        os.kill(found[0], signal.SIGKILL)

    def start_broker(self, name: str) -> None:
        """Start a broker again on the disk that it has, and wait until it answers."""
        node = 1 + BROKERS.index(name)
        self.kafka.stop(node, signal.SIGKILL)  # forgets the one that was killed with its host
        self.kafka.start(node)

    def _start_brokers(self, stack: contextlib.ExitStack) -> None:
        hosts = [self.hosts.add(name) for name in BROKERS]
        self.kafka = KafkaCluster(
            self._disks,
            len(hosts),
            addresses=[host.address for host in hosts],
            on_host=lambda node, command: hosts[node - 1].command(*command),
        )
        self._say(f"Kafka on {', '.join(host.address for host in hosts)}")
        stack.callback(self.kafka.down)  # first: the start may be interrupted
        self.kafka.up()

    def _start_store(self, stack: contextlib.ExitStack) -> None:
        host = self.hosts.add("store")
        self._say(f"the store with the S3 protocol on {host.address}")
        self.store = S3Server(
            self._stored, address=host.address, on_host=lambda command: host.command(*command)
        )
        stack.callback(self.store.down)
        self.store.up()
        self.hosts.environment |= self.store.environment
        if self.shared:
            # A writer of a shared archive expects its bucket.
            made = host.run(
                sys.executable, "-c", _BUCKET, timeout_s=_START_S, environment=self.store.environment
            )
            if made.returncode:
                raise LabError(f"no bucket could be made for the archive:\n{made.stdout}")
            self.hosts.environment[ARCHIVE_VARIABLE] = f"delta:{SHARED_ARCHIVE}"

    def _start_ray(self) -> None:
        head = self.hosts.add(RAY_HEAD)
        self._say(f"Ray's head on {head.address}")
        self.start_ray_head()
        for name in RAY_WORKERS:
            self._say(f"a worker of Ray on {self.hosts.add(name).address}")
            self.start_ray_worker(name)
        # A run is planned for the machines that are there when it starts.
        self.await_ray(1 + len(RAY_WORKERS))

    def _start_services(self) -> None:
        processors, *archivers = (self.hosts.add(name) for name in ("processors", *self.archivers))
        where = ", ".join(host.address for host in archivers)
        self._say(f"topics, processors on {processors.address}, archiver on {where}")
        made = processors.run(_UNSTABLE, "topics", "create", "--log", self.log, timeout_s=_START_S)
        if made.returncode:
            raise LabError(f"the topics could not be made:\n{made.stdout}")
        for name in ("processors", *self.archivers):
            self.start_service(name)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended meanwhile


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; see the module's description."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=20, help="learner updates of the run")
    parser.add_argument(
        "--archive", choices=tuple(ARCHIVES), default="file", help="shared: in the store, with two archivers"
    )
    parser.add_argument(
        "--faults", metavar="NAMES", help="`all`, or names with commas: see docs/evidence/cluster-faults.md"
    )
    parser.add_argument(
        "--results", type=Path, help="with --faults: the file to which a line of JSON is added for each"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="with --faults: after them none is begun any more"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the run, as for train"
    )
    parser.add_argument(
        "--network", metavar="10.213.7.0/24", help="of the hosts; by default a free one of 198.18.0.0/15"
    )
    parser.add_argument("--directory", type=Path, help="for disks and logs; by default a temporary one")
    parser.add_argument("--keep", action="store_true", help="keep disks and logs")
    options = parser.parse_args(arguments)
    reason = why_unavailable()
    if reason is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    try:
        faults = _named(options.faults, options.archive)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # Ended by whoever supervises it, it must end its hosts, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    directory = options.directory or Path(tempfile.mkdtemp(prefix="unstable-stream-lab-"))
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - begun:5.0f} s] {line}", flush=True)

    try:
        with Lab(directory, archive=options.archive, network=options.network, say=say) as lab:
            if faults:
                return _do_faults(lab, faults, options, say)
            return _train_and_prove(lab, options.updates, options.set, say)
    except (LabError, HostsUnavailableError, KafkaUnavailableError, S3UnavailableError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if options.keep or options.directory:
            say(f"disks and logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _named(names: str | None, archive: str) -> "list[Fault]":
    if names is None:
        return []
    from tools.lab.faults import FAULTS  # it uses this module

    possible = [name for name, fault in FAULTS.items() if archive in fault.archives]
    wanted = possible if names == "all" else names.split(",")
    if unknown := [name for name in wanted if name not in FAULTS]:
        raise LabError(f"no fault is called {unknown[0]!r}; there are {', '.join(FAULTS)}, and all")
    if impossible := [name for name in wanted if name not in possible]:
        raise LabError(f"{impossible[0]} needs --archive {FAULTS[impossible[0]].archives[0]}")
    return [FAULTS[name] for name in wanted]


def _do_faults(
    lab: Lab, faults: "Sequence[Fault]", options: argparse.Namespace, say: Callable[[str], None]
) -> int:
    from tools.lab.faults import do_faults
    from tools.lab.results import table

    results = do_faults(lab, faults, options.set, say, within_s=60 * options.minutes)
    if options.results:
        with options.results.open("a") as file:
            file.writelines(f"{result.line()}\n" for result in results)
    print("\n".join(table(results)))
    return int(any(result.failure for result in results) or len(results) < len(faults))


def _train_and_prove(lab: Lab, updates: int, settings: Sequence[str], say: Callable[[str], None]) -> int:
    given = [argument for setting in settings for argument in ("--set", setting)]
    process = lab.train("--set", f"learner.iterations={updates}", *given)
    told = ""
    where: dict[str, list[str]] = {}
    while process.poll() is None:
        time.sleep(5)
        if (words := lab.last_words("train", 1)) != told:
            told = words
            say(told)
        if sum(map(len, where.values())) < sum(map(len, (now := lab.actors()).values())):
            where = now
            say("; ".join(f"{host}: {', '.join(names) or 'nothing'}" for host, names in where.items()))
    print(lab.last_words("train", 12))
    from tools.lab.proofs import prove_run  # it uses this module

    failed = process.returncode
    for proof in prove_run(lab):
        say(f"{proof.name}: {proof.verdict}")
        print(proof.said)
        failed = failed or proof.failed
    return int(failed != 0)


if __name__ == "__main__":
    # Of the module by its name: faults and proofs import that one, and would not know this one's errors.
    from tools.lab.cluster import main as of_module

    sys.exit(of_module())
