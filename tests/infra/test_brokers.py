"""The real Kafka without Docker: it starts, says what it is, ends cleanly, and says what is in its way."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.kafka.brokers import KafkaCluster, KafkaUnavailableError
from tests.conftest import free_port_pair, skip_without_kafka
from tests.processes import completed, still_runs

SCRIPT = Path(__file__).parents[2] / "infra" / "kafka" / "brokers.py"


def brokers(*arguments: str, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run the script as ``make`` does: with any Python, from anywhere."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}
    environment |= {} if path is None else {"PATH": path}
    return completed(sys.executable, SCRIPT, *arguments, timeout=110, env=environment)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaCluster]:
    """A cluster that is not up, of one broker or of as many as are asked for; it is stopped in the end."""
    skip_without_kafka()
    count = getattr(request, "param", 1)
    made = KafkaCluster(tmp_path / "kafka", brokers=count, port=free_port_pair(count))
    yield made
    made.down(delete=True)


@pytest.mark.broker
def test_up_status_down_up_again_and_delete(
    tmp_path: Path, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--directory", str(tmp_path / "kafka"), "--port", str(cluster.port))
    up = brokers("up", *where)
    assert (up.returncode, up.stdout) == (0, f"Kafka is up: --log kafka://127.0.0.1:{cluster.port}\n"), (
        up.stderr
    )
    pid = cluster.pid(1)
    assert pid is not None
    again = brokers("up", *where)
    assert (again.returncode, cluster.pid(1)) == (0, pid), "up twice starts nothing twice"
    status = brokers("status", *where)
    assert status.stdout == f"broker 1: running, process {pid}\n"

    down = brokers("down", *where)
    assert (down.returncode, down.stdout) == (0, "Kafka is down; its data is kept\n")
    assert not still_runs(pid)
    assert brokers("status", *where).stdout == "broker 1: not running\n"
    identity = (tmp_path / "kafka" / "cluster-id").read_text()

    # That a broker goes on with its data is proven in test_kafka_outage.py.
    for step in ("start", "wait"):
        monkeypatch.setattr(KafkaCluster, step, lambda *_, **__: None)
    cluster.up()
    assert (tmp_path / "kafka" / "cluster-id").read_text() == identity, "the same cluster on the same data"
    gone = brokers("down", "--delete", *where)
    assert gone.stdout == "Kafka is down; what it stored is gone\n"
    assert list((tmp_path / "kafka").iterdir()) == []
    assert brokers("down", *where).returncode == 0, "down without anything is fine"

    monkeypatch.setattr("infra.kafka.brokers.secrets.token_bytes", lambda count: b"\xfb" + bytes(count - 1))
    cluster.up()
    identity = (tmp_path / "kafka" / "cluster-id").read_text()
    assert not identity.startswith("-"), "it would be taken for an option"


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_three_brokers_one_is_killed_and_comes_back(tmp_path: Path, cluster: KafkaCluster) -> None:
    cluster.up()
    assert len(cluster.bootstrap.split(",")) == 3
    pids = [cluster.pid(node) for node in (1, 2, 3)]
    assert None not in pids
    assert len(set(pids)) == 3

    cluster.stop(2, signal.SIGKILL)
    assert [cluster.pid(node) for node in (1, 2, 3)] == [pids[0], None, pids[2]]
    cluster.up()
    revived = cluster.pid(2)
    assert revived not in (None, pids[1])
    assert [cluster.pid(1), cluster.pid(3)] == [pids[0], pids[2]], "only the missing one is started"

    with pytest.raises(KafkaUnavailableError, match="holds a cluster of 3, 1 asked for"):
        KafkaCluster(tmp_path / "kafka", brokers=1, port=cluster.port).up()


@pytest.mark.broker
def test_a_taken_port_is_named(tmp_path: Path) -> None:
    skip_without_kafka()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = brokers("up", "--directory", str(tmp_path / "kafka"), "--port", str(port))
    assert refused.returncode == 1
    assert refused.stderr == (f"error: port {port} is taken by another program: choose another with --port\n")


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    refused = brokers("up", "--directory", str(tmp_path / "kafka"), path=str(tmp_path))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "`apt-get install openjdk-17-jre-headless`" in refused.stderr
    assert "`apt-get install maven`" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "kafka").exists(), "nothing was made"


@pytest.mark.parametrize("content", ["{} Mon Jan 1 00:00:00 2024", "", "not a number", "123456789"])
def test_a_pid_file_of_another_process_or_of_nothing_is_no_running_broker(
    tmp_path: Path, content: str
) -> None:
    """After a reboot the number may belong to another process, and a power cut may leave a part of it."""
    with subprocess.Popen(["sleep", "60"]) as innocent:
        home = tmp_path / "kafka" / "broker-1"
        home.mkdir(parents=True)
        (home / "pid").write_text(content.format(innocent.pid))
        cluster = KafkaCluster(tmp_path / "kafka")
        assert cluster.pid(1) is None
        cluster.down()
        assert innocent.poll() is None
        assert not (home / "pid").exists()
        innocent.kill()
