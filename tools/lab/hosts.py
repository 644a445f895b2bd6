"""Hosts in a box: network namespaces joined by a bridge, each with a name, an address and a disk of its own.

A process that runs on a :class:`Host` sees only its host's addresses, and a private ``/tmp``, where its home
and data directories are. It shares with the others, as a machine image would be shared, the programs: this
repository and Python. ``/dev/shm`` is common, too: each Ray node keeps a file of its own there. Needs root on
Linux, and the programs ``ip``, ``unshare`` and ``mount``.
"""

import fcntl
import ipaddress
import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_END_S: Final = 30.0
"""Seconds for processes to be gone after a kill."""
_PREFIX: Final = "usl"
"""Of the names of namespaces and links; the id of the process that made them follows."""
_POOL: Final = ipaddress.ip_network("198.18.0.0/15")
"""The block for benchmarks of networks (RFC 2544): nobody's real addresses."""
_NETWORK_BITS: Final = 24
# In the host: its name, and its /tmp, into which what all share is bound if it lies there. Then the command.
_ENTER: Final = """
set -e
hostname "$1"; private="$2"; shift 2
while [ "$1" != -- ]; do mkdir -p "$private$1"; mount --bind "$1" "$private$1"; shift; done
shift
mount --rbind "$private/tmp" /tmp
cd "$PWD"
exec "$@"
"""


class HostsUnavailableError(RuntimeError):
    """Hosts cannot be made here; the message says what to do."""


def free_networks(taken: Iterable[str], wanted: str | None = None) -> list[str]:
    """Return the networks that hosts may have here, as ``198.18.7.0/24``.

    Args:
        taken: the networks and addresses that this machine has or knows a way to.
        wanted: the only one that may be; by default any of 198.18.0.0/15.

    Raises:
        HostsUnavailableError: there is none; the message says what to do.
    """
    others = [ipaddress.ip_network(each, strict=False) for each in taken if each != "default"]
    others = [each for each in others if each.version == 4 and each.prefixlen > 0]
    remedy = "end what has it, or name another network for the hosts with --network, e.g. 10.213.7.0/24"
    if wanted is None:
        possible = [*_POOL.subnets(new_prefix=_NETWORK_BITS)]
        free = [each for each in possible if not any(each.overlaps(other) for other in others)]
        if not free:
            raise HostsUnavailableError(f"all of {_POOL} is in use on this machine: {remedy}")
        return [str(each) for each in free]
    try:
        network = ipaddress.IPv4Network(wanted)
    except ValueError as error:
        raise HostsUnavailableError(f"--network {wanted}: {error}; expected e.g. 10.213.7.0/24") from error
    if network.prefixlen != _NETWORK_BITS:
        raise HostsUnavailableError(
            f"--network {wanted}: expected one of {_NETWORK_BITS} bits: 10.213.7.0/24"
        )
    if in_use := next((other for other in others if network.overlaps(other)), None):
        raise HostsUnavailableError(f"{wanted} is in use on this machine ({in_use}): {remedy}")
    return [wanted]


def why_unavailable() -> str | None:
    """Return what is missing to make hosts here, with what mends it; ``None``: nothing."""
    if platform.system() != "Linux":
        return "hosts in a box are Linux network namespaces: use a Linux machine"
    if os.geteuid() != 0:
        return "hosts in a box need root: use sudo, or a container with --privileged"
    missing = [
        f"{program} (e.g. `apt-get install {package}`)"
        for program, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("mount", "mount"))
        if shutil.which(program) is None
    ]
    if missing:
        return f"hosts in a box need {' and '.join(missing)}"
    probe = f"{_PREFIX}{os.getpid()}p{secrets.token_hex(2)}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here ({made.stderr.strip()}): use a machine where root may"
    _ip("netns", "del", probe)
    return None


@dataclass
class Host:
    """One host; made by :meth:`Hosts.add`."""

    name: str
    address: str
    namespace: str
    private: Path
    """What the host sees as ``/tmp`` is the directory ``tmp`` in it."""
    environment: dict[str, str]
    _shared: Sequence[Path]
    _processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def command(self, *command: str | Path) -> list[str]:
        """Return the command with which a command runs on this host, as a process with the same id."""
        bound = [str(path) for path in self._shared if path.is_relative_to("/tmp")]
        return [
            "ip", "netns", "exec", self.namespace, "unshare", "--mount", "--uts", "sh", "-c", _ENTER, "sh",
            self.name, str(self.private), *bound, "--", *map(str, command),
        ]  # fmt: skip

    def start(self, *command: str | Path, log: Path) -> "subprocess.Popen[bytes]":
        """Start a process whose output is added to a file."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(*command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=REPOSITORY,
                env=self.environment,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def run(
        self, *command: str | Path, timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a process to its end and return what it said; its error output follows its output."""
        return subprocess.run(
            self.command(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            env={**self.environment, **(environment or {})},
            timeout=timeout_s,
            check=False,
        )

    def disconnect(self) -> None:
        """Take the link down: packets to and from this host are lost."""
        _ip("link", "set", f"{self.namespace}b", "down")

    def connect(self) -> None:
        """Take the link up again."""
        _ip("link", "set", f"{self.namespace}b", "up")

    def stop_sending_to(self, other: "Host") -> None:
        """Lose packets to another host; those from it still arrive."""
        _ip("-n", self.namespace, "route", "add", "blackhole", other.address)

    def send_again_to(self, other: "Host") -> None:
        """Undo :meth:`stop_sending_to`."""
        _ip("-n", self.namespace, "route", "del", "blackhole", other.address)

    def pids(self) -> list[int]:
        """Return the ids of all processes on this host."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def _on_their_way(self) -> list[int]:
        """Return the ids of what was started here and lives: it may not have entered the host yet."""
        return [process.pid for process in self._processes if process.poll() is None]

    def vanish(self) -> None:
        """Disconnect the host and kill all of its processes, as a power cut does; its disk stays."""
        self.disconnect()
        deadline = time.monotonic() + _END_S
        while pids := {*self.pids(), *self._on_their_way()}:
            if time.monotonic() > deadline:
                raise HostsUnavailableError(f"processes {sorted(pids)} of host {self.name} do not end")
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for process in self._processes:
            process.wait()
        self._processes.clear()


class Hosts:
    """Hosts on one bridge, which end with the ``with`` block and leave nothing behind."""

    def __init__(
        self,
        directory: Path,
        *,
        shared: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        network: str | None = None,
    ) -> None:
        """Prepare.

        Args:
            directory: of the hosts' disks; exists.
            shared: paths that all hosts see although they are under ``/tmp``.
            environment: added to the environment of all processes.
            network: of their addresses, e.g. ``10.213.7.0/24``; by default one that is free here.
        """
        self._directory = directory
        programs = (REPOSITORY, Path(sys.prefix), Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
        self._shared = list(dict.fromkeys((*programs, *shared)))
        self.environment = dict(environment or {})
        """Of hosts that are added from now on."""
        self._name = f"{_PREFIX}{os.getpid()}"
        self._bridge = f"{self._name}br"
        self._hosts: dict[str, Host] = {}
        self._undo = ExitStack()
        self._wanted = network
        self._network = ""
        """The first three numbers of every address."""

    @property
    def gateway(self) -> str:
        """The address of this machine itself on the bridge."""
        return f"{self._network}.1"

    def __iter__(self) -> Iterator[Host]:
        """Iterate over the hosts, in the order in which they were added."""
        return iter(self._hosts.values())

    def __getitem__(self, name: str) -> Host:
        """Return a host by its name."""
        return self._hosts[name]

    def __enter__(self) -> "Hosts":
        """Make the bridge, with a network that nothing else here has.

        Raises:
            HostsUnavailableError: it cannot be made here.
        """
        reason = why_unavailable()
        if reason is not None:
            raise HostsUnavailableError(reason)
        _forget_the_dead()
        with ExitStack() as undo:
            # Labs choose one after another: the next one finds this one's network taken.
            undo.enter_context(_alone())
            if self._bridge in (link["ifname"] for link in _listed("link")):
                raise HostsUnavailableError(
                    f"there is a network link {self._bridge}, which no lab of this process has made: "
                    f"start again, or remove it with `ip link del {self._bridge}`"
                )
            self._network = secrets.choice(free_networks(_taken(), self._wanted)).rpartition(".")[0]
            with ExitStack() as made:
                _ip("link", "add", self._bridge, "type", "bridge")
                made.callback(_ip, "link", "del", self._bridge)
                _ip("addr", "add", f"{self.gateway}/{_NETWORK_BITS}", "dev", self._bridge)
                _ip("link", "set", self._bridge, "up")
                self._undo = made.pop_all()
        return self

    def add(self, name: str) -> Host:
        """Make a host and connect it."""
        number = len(self._hosts) + 2
        namespace = f"{self._name}n{number}"
        private = self._directory / name
        (private / "tmp" / "home").mkdir(parents=True, exist_ok=True)
        host = Host(
            name,
            f"{self._network}.{number}",
            namespace,
            private,
            {
                # A proxy would be asked for the other hosts.
                **{key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")},
                "TMPDIR": "/tmp",
                "HOME": "/tmp/home",
                "PYTHONPATH": str(REPOSITORY),
                "PYTHONUNBUFFERED": "1",
                **self.environment,
            },
            self._shared,
        )
        self._hosts[name] = host
        outside, inside = f"{namespace}b", "eth0"
        _ip("netns", "add", namespace)
        self._undo.callback(_ip, "netns", "del", namespace)
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", namespace)
        # By name: the kernel keeps a namespace with its link while a connection in it is not timed out.
        self._undo.callback(_ip, "link", "del", outside)
        self._undo.callback(host.vanish)
        _ip("link", "set", outside, "master", self._bridge)
        _ip("link", "set", outside, "up")
        _ip("-n", namespace, "addr", "add", f"{host.address}/24", "dev", inside)
        _ip("-n", namespace, "link", "set", inside, "up")
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "route", "add", "default", "via", self.gateway)
        return host

    def __exit__(self, *_: object) -> None:
        """Kill all processes, and remove namespaces and bridge."""
        self._undo.close()


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other lab on this machine chooses a network, and keep others waiting."""
    # Common to labs of all checkouts, and nothing that would have to be removed.
    handle = os.open("/run", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _taken() -> list[str]:
    """Return the networks that this machine has addresses in, or knows a way to."""
    addresses = [
        f"{each['local']}/{each['prefixlen']}" for link in _listed("addr") for each in link["addr_info"]
    ]
    return addresses + [route["dst"] for route in _listed("-4", "route", "show", "table", "all")]


def _listed(*arguments: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(_ip("-json", *arguments) or "[]")
    return [each for each in listed if each]


def _forget_the_dead() -> None:
    """Remove what a lab has left whose own process was killed."""
    for line in _ip("netns", "list").splitlines():
        namespace = line.split()[0]
        owner, _, number = namespace.removeprefix(_PREFIX).partition("n")
        ours = namespace.startswith(_PREFIX) and owner.isdigit() and number.isdigit()
        if not ours or Path(f"/proc/{owner}").exists():
            continue
        for pid in _ip("netns", "pids", namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with suppress(HostsUnavailableError):  # gone already
            _ip("link", "del", f"{namespace}b")
        _ip("netns", "del", namespace)
    for line in _ip("-br", "link", "show", "type", "bridge").splitlines():
        bridge = line.split()[0]
        owner = bridge.removeprefix(_PREFIX).removesuffix("br")
        # Also one without hosts: its lab was killed before the first or after the last.
        if bridge == f"{_PREFIX}{owner}br" and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _ip("link", "del", bridge)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsUnavailableError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
