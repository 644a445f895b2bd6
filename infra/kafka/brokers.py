"""A real Apache Kafka on this machine without Docker: one broker, or three with replication, on loopback.

Usage: python infra/kafka/brokers.py up|down|status [--brokers 3] [--directory DIR] [--port 9092]

Maven resolves the jars named in ``pom.xml`` into ``.lib/`` beside it; the brokers run in KRaft mode from
``server.properties``. All they write is under the directory: for each its data, its log and its pid file.
Only the standard library is needed here; Java 17 and Maven are needed on the machine.
"""

import argparse
import base64
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
DEFAULT_DIRECTORY: Final = _HERE / ".cluster"
_LIBRARY: Final = _HERE / ".lib"
_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 30.0
_HEAP: Final = "-Xmx512m"


class KafkaUnavailableError(RuntimeError):
    """Kafka cannot run here, or did not start; the message says what to do."""


def why_unavailable() -> str | None:
    """Return what is missing to run Kafka here, with the command that mends it; ``None`` if nothing is."""
    missing = [
        f"{program} (e.g. `apt-get install {package}`)"
        for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven"))
        if shutil.which(program) is None
    ]
    return f"a Kafka broker needs {' and '.join(missing)}" if missing else None


@dataclass
class KafkaCluster:
    """Brokers, on loopback if nothing else is said. Start them with :meth:`up`, or ``with``."""

    directory: Path = DEFAULT_DIRECTORY
    brokers: int = 1
    port: int = 9092
    """Of the first broker; each further one takes two more (its own and its controller's)."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Added to every broker's properties; ``{port}`` stands for the broker's port."""
    addresses: Sequence[str] = ()
    """Of every broker, if each has an address of its own; they then have the same port."""
    on_host: Callable[[int, Sequence[str]], Sequence[str]] = lambda node, command: command
    """Returns the command that runs a broker's command on its host, as a process with the same id."""

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every broker, separated by commas."""
        return ",".join(f"{self._address(node)}:{self._port(node)}" for node in self._nodes)

    @property
    def _identity(self) -> Path:
        """Holds the cluster id and the number of brokers its storage was formatted for."""
        return self.directory / "cluster-id"

    @property
    def _nodes(self) -> range:
        return range(1, self.brokers + 1)

    def _address(self, node: int) -> str:
        return self.addresses[node - 1] if self.addresses else "127.0.0.1"

    def _port(self, node: int) -> int:
        return self.port if self.addresses else self.port + 2 * (node - 1)

    def _answers(self, node: int) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((self._address(node), self._port(node))) == 0

    def _home(self, node: int) -> Path:
        return self.directory / f"broker-{node}"

    def _pid_file(self, node: int) -> Path:
        return self._home(node) / "pid"

    def up(self) -> None:
        """Start the brokers that are not running and wait until all answer.

        Raises:
            KafkaUnavailableError: Java or Maven is missing, the port is taken, or a broker did not start.
        """
        reason = why_unavailable()
        if reason is not None:
            raise KafkaUnavailableError(reason)
        _resolve_jars()
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._identity.is_file():
            cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
            if cluster_id.startswith("-"):  # Kafka's tool would take it for an option
                cluster_id = "A" + cluster_id[1:]
            self._identity.write_text(f"{cluster_id} {self.brokers}")
        formatted_for = int(self._identity.read_text().split()[1])
        if formatted_for != self.brokers:
            raise KafkaUnavailableError(
                f"{self.directory} holds a cluster of {formatted_for}, {self.brokers} asked for: "
                f"delete it with 'down --delete', or give another --directory"
            )
        started = [node for node in self._nodes if self.pid(node) is None]
        for node in started:
            self.start(node, wait=False)
        for node in started:
            self.wait(node)

    def start(self, node: int, *, wait: bool = True) -> None:
        """Start one broker (numbered from 1) on the data it has."""
        home = self._home(node)
        home.mkdir(parents=True, exist_ok=True)
        if self._answers(node):
            raise KafkaUnavailableError(
                f"port {self._port(node)} is taken by another program: choose another with --port"
            )
        properties = home / "server.properties"
        properties.write_text(self._properties(node))
        if not (home / "data" / "meta.properties").is_file():
            cluster_id = self._identity.read_text().split()[0]
            formatted = subprocess.run(
                [*_java("-Xmx256m"), "kafka.tools.StorageTool", "format", "--cluster-id", cluster_id,
                 "--config", str(properties), "--ignore-formatted"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if formatted.returncode:
                raise KafkaUnavailableError(
                    f"formatting broker {node} failed: {formatted.stdout}{formatted.stderr}"
                )
        command = [*self.on_host(node, [*_java(_HEAP), "kafka.Kafka", str(properties)])]
        # Not subprocess.Popen: it watches over its children, and the broker outlives whoever started it.
        pid = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, home / "broker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        self._pid_file(node).write_text(f"{pid} {_started_at(pid)}")
        if wait:
            self.wait(node)

    def wait(self, node: int) -> None:
        """Wait until a broker that was started answers."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers(node):
            if self.pid(node) is None or time.monotonic() > deadline:
                log = self._home(node) / "broker.log"
                last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise KafkaUnavailableError(f"broker {node} did not start; its log {log} ends with:\n{last}")
            time.sleep(0.1)

    def stop(self, node: int, number: int = signal.SIGTERM) -> None:
        """End one broker and wait until it has gone; ``SIGKILL`` is a crash."""
        pid = self.pid(node)
        if pid is not None:
            _send(pid, number)
            deadline = time.monotonic() + _STOP_TIMEOUT_S
            while self.pid(node) is not None:
                if time.monotonic() > deadline:
                    # With a majority of controllers gone, the last ones wait for them for minutes.
                    _send(pid, signal.SIGKILL)
                    deadline += _STOP_TIMEOUT_S
                time.sleep(0.05)
            # The last threads of a killed process may keep its port for a moment: start() would find it
            # taken.
            while self._answers(node) and time.monotonic() < deadline:
                time.sleep(0.05)
        self._pid_file(node).unlink(missing_ok=True)

    def down(self, *, delete: bool = False) -> None:
        """Stop all brokers; ``delete`` removes what they stored, the jars stay."""
        nodes = [int(home.name.removeprefix("broker-")) for home in self.directory.glob("broker-*")]
        pids = {node: self.pid(node) for node in nodes}
        for pid in pids.values():  # all at once: none can stop cleanly after the majority has gone
            if pid is not None:
                _send(pid, signal.SIGTERM)
        for node in nodes:
            self.stop(node)
            if delete:
                shutil.rmtree(self._home(node))
        if delete:
            self._identity.unlink(missing_ok=True)

    def pid(self, node: int) -> int | None:
        """Return the process id of a running broker that was started from this directory."""
        try:
            pid, _, started = self._pid_file(node).read_text().partition(" ")
        except FileNotFoundError:
            return None
        if not pid.isdigit():
            return None  # cut short, by a full disk or a power cut
        _reap(int(pid))
        # The start time tells the broker from a later process with the same number.
        return int(pid) if started and _started_at(int(pid)) == started else None

    def __enter__(self) -> "KafkaCluster":
        self.up()
        return self

    def __exit__(self, *error: object) -> None:
        self.down()

    def _properties(self, node: int) -> str:
        copies = min(self.brokers, 3)
        address, port = self._address(node), self._port(node)
        own = {
            "node.id": node,
            "listeners": f"PLAINTEXT://{address}:{port},CONTROLLER://{address}:{port + 1}",
            "advertised.listeners": f"PLAINTEXT://{address}:{port}",
            "controller.quorum.voters": ",".join(
                f"{other}@{self._address(other)}:{self._port(other) + 1}" for other in self._nodes
            ),
            "log.dirs": self._home(node) / "data",
            "default.replication.factor": copies,
            "min.insync.replicas": max(1, copies - 1),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": max(1, copies - 1),
            **{key: value.replace("{port}", str(port)) for key, value in self.settings.items()},
        }
        shared = (_HERE / "server.properties").read_text()
        return shared + "\n" + "".join(f"{key}={value}\n" for key, value in own.items())


def _resolve_jars() -> None:
    """Have the jars in place; one process resolves them while others wait for it."""
    with (_HERE / "pom.xml").open() as pom:
        fcntl.flock(pom, fcntl.LOCK_EX)
        _resolve(pom.read())


def _resolve(pom: str) -> None:
    resolved = _LIBRARY / ".pom.xml"
    if resolved.is_file() and resolved.read_text() == pom:
        return
    print("resolving the jars of Apache Kafka with Maven (about 45 MB the first time)", file=sys.stderr)
    shutil.rmtree(_LIBRARY, ignore_errors=True)
    maven = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies",
         f"-DoutputDirectory={_LIBRARY}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if maven.returncode:
        raise KafkaUnavailableError(f"Maven could not resolve Kafka's jars:\n{maven.stdout}{maven.stderr}")
    resolved.write_text(pom)


def _java(heap: str) -> list[str]:
    # The quick compiler alone: a broker starts with half the work, and few records pass through it here.
    return ["java", heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={_HERE / 'log4j2.yaml'}", "-cp", str(_LIBRARY / "*")]  # fmt: skip


def _started_at(pid: int) -> str:
    """Return when a process started, in the words of ``ps``; empty if there is none, or only a zombie."""
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = shown.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else " ".join(started.split())


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, number)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # it was started by another process
        os.waitpid(pid, os.WNOHANG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("up", "down", "status"))
    parser.add_argument(
        "--brokers", type=int, choices=(1, 3), default=int(os.environ.get("KAFKA_BROKERS", "1"))
    )
    parser.add_argument("--port", type=int, default=int(os.environ.get("KAFKA_PORT", "9092")))
    parser.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY)
    parser.add_argument("--delete", action="store_true", help="down: remove what the brokers stored")
    options = parser.parse_args(arguments)
    cluster = KafkaCluster(options.directory.resolve(), options.brokers, options.port)
    try:
        if options.command == "up":
            cluster.up()
            print(f"Kafka is up: --log kafka://{cluster.bootstrap}")
        elif options.command == "down":
            cluster.down(delete=options.delete)
            print("Kafka is down" + ("; what it stored is gone" if options.delete else "; its data is kept"))
        else:
            for node in range(1, options.brokers + 1):
                pid = cluster.pid(node)
                print(f"broker {node}: " + ("not running" if pid is None else f"running, process {pid}"))
    except KafkaUnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
