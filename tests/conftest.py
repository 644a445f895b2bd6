"""What tests of several areas share: a real Kafka broker, a log of each kind, and a real language model."""

import fcntl
import gc
import os
import random
import resource
import secrets
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest
import structlog
from hypothesis import settings

from examples.smollm2.convert import convert
from infra.kafka.brokers import KafkaCluster, why_unavailable
from infra.s3 import server as s3_server
from infra.s3.server import S3Server
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.runs.data_dir import DataDir

# What is imported, and the tests found, stay. To look for garbage in it takes a quarter of the CPU time.
gc.disable()
# Small tensors, several tests at a time: more threads would wait for each other at every operation.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-limit", type=float, metavar="S", help="fail a test that takes more CPU time")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that has outgrown its tier. CPU time, with what it starts: a busy machine is no failure."""
    limit_s: float | None = item.config.getoption("--cpu-limit")
    begin_s = _cpu_s()
    yield
    if limit_s is not None and (taken_s := _cpu_s() - begin_s) > limit_s:
        pytest.fail(
            f"{taken_s:.1f} s of CPU time, for at most {limit_s:g} s: make it shorter, or mark its module "
            "with `pytestmark = pytest.mark.longer`",
            pytrace=False,
        )


def _cpu_s() -> float:
    own, of_children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + of_children.ru_utime + of_children.ru_stime


def pytest_collection_finish() -> None:
    """From now on look for garbage, but not in what there is."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let all be taken down, or DuckDB says at the end that it was leaked."""
    gc.enable()
    gc.unfreeze()


# The same examples in every run of the tests: what fails here fails everywhere. A slow machine is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

# A shell that starts the tests in the background has SIGINT ignored, and so would every process of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_configured_log_lines() -> Iterator[None]:
    """Each test finds structlog unconfigured: commands and ``capture_logs`` configure it for ever."""
    yield
    structlog.reset_defaults()


EXISTING_BROKER = "UNSTABLE_STREAM_TEST_KAFKA"
"""Environment variable: ``host:port`` of a broker to use instead of starting one."""

# Events of tests are from 1970: retention and compaction would take them away in the midst of a test.
KEEPING = {
    "log.initial.task.delay.ms": "86400000",
    "log.retention.check.interval.ms": "86400000",
    "log.cleaner.backoff.ms": "86400000",
}


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a real broker for the whole session: use unique topics and groups."""
    existing = os.environ.get(EXISTING_BROKER)
    if existing:
        yield existing
        return
    skip_without_kafka()
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), 1, free_port_pair(), KEEPING) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="session")
def s3_server_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real server of the S3 protocol for the whole session: use places of your own in it."""
    reason = s3_server.why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    server = S3Server(tmp_path_factory.mktemp("s3"), free_ports(s3_server.PORTS))
    server.up()
    yield server
    server.kill()


@pytest.fixture
def s3(s3_server_of_session: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address that is this test's own, in a store that it reaches; the host's cache is its own too."""
    for name, value in s3_server_of_session.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UNSTABLE_STREAM_CACHE", str(tmp_path / "cache"))
    return f"s3://unstable-stream-tests/{secrets.token_hex(6)}"


Archives: TypeAlias = Callable[[str], ArchiveAddress]
"""Names archives."""


@pytest.fixture(params=["file", "delta"])
def archive_at(request: pytest.FixtureRequest, tmp_path: Path) -> Archives:
    """Return what names archives of this test's own, of each kind in turn."""
    kind: str = request.param

    def named(name: str) -> ArchiveAddress:
        return tmp_path / f"{name}.duckdb" if kind == "file" else f"delta:{tmp_path / name}"

    return named


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that want a broker or a store, themselves or for a kind of log. Begin with long ones."""
    for item in items:
        if isinstance(item, pytest.Function):
            chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
            wanted = {*item.fixturenames, *(kind for kind in chosen if isinstance(kind, str))}
            if wanted & {"kafka_bootstrap", "kafka"}:
                item.add_marker("broker")
            if wanted & {"s3_server_of_session", "s3"}:
                item.add_marker("store")
    # A long module that begins last keeps one process busy while the others have nothing to do.
    items.sort(key=lambda item: {"longer", "broker", "store"}.isdisjoint(m.name for m in item.iter_markers()))


@pytest.fixture(params=["local", "kafka"])
def location(request: pytest.FixtureRequest) -> str:
    """``--log`` of each kind of log in turn. A Kafka is shared with other tests: use names of your own."""
    if request.param == "local":
        return "local"
    bootstrap: str = request.getfixturevalue("kafka_bootstrap")
    return f"kafka://{bootstrap}"


@pytest.fixture
async def any_log(location: str, tmp_path: Path) -> AsyncIterator[EventLog]:
    """The log there."""
    async with opened_log(location, DataDir(tmp_path).log) as log:
        yield log


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with SmolLM2-135M-Instruct, the real language model of ``make smollm2``."""
    return convert(tmp_path_factory.mktemp("smollm2") / "model")


def skip_without_kafka() -> None:
    """Skip the test, saying what to install, if no broker can run here."""
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(reason)


def free_port_pair(brokers: int = 1) -> int:
    """Return a port such that it and those after it, two for each broker, are free and stay ours.

    Below those the system hands out to outgoing connections: a broker that is killed and started again
    would find its port taken by somebody who happens to connect to somewhere. No other test is given
    them as long as this process lives.
    """
    return free_ports(2 * brokers)


def free_ports(count: int) -> int:
    """Return the first of so many ports in a row that are free and stay ours, as :func:`free_port_pair`."""
    while True:
        port = random.randrange(20_000, 32_000)
        wanted = range(port, port + count)
        if all(_reserve(other) for other in wanted) and all(_is_free(other) for other in wanted):
            return port


_RESERVED: Final = Path(tempfile.gettempdir()) / "unstable-stream-test-ports"
_held: Final[dict[int, int]] = {}
"""Port to the file that is locked for it, until this process ends."""


def _reserve(port: int) -> bool:
    """Tell whether the port is ours from now on; ``False`` if it was given out before, here or elsewhere."""
    if port in _held:
        return False
    _RESERVED.mkdir(exist_ok=True)
    file = os.open(_RESERVED / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    _held[port] = file
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
