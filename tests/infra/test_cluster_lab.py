"""A run over hosts that share no disk: it trains, it is spread, it survives faults, and it adds up."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import completed, python, still_runs
from tests.tiers import chosen
from tools.lab.cluster import RAY_HEAD, RAY_WORKERS, Lab, why_unavailable
from tools.lab.faults import FAULTS, do_faults
from tools.lab.hosts import REPOSITORY, Hosts, HostsUnavailableError
from tools.lab.hosts import why_unavailable as why_no_hosts

pytestmark = pytest.mark.slow


def ip(*what: str) -> str:
    """Change the networks of this machine, or ask for them."""
    done = completed("ip", *what)
    assert done.returncode == 0, done.stderr
    return done.stdout


def left_behind(pid: int | None = None) -> list[str]:
    """Links and namespaces of labs that a process has made, by default this one."""
    names = f"{ip('-br', 'link')} {ip('netns', 'list')}".split()
    return [name for name in names if name.startswith(f"usl{pid or os.getpid()}")]


def test_hosts_have_names_addresses_and_disks_of_their_own_and_leave_nothing(tmp_path: Path) -> None:
    if reason := why_no_hosts():
        pytest.skip(reason)
    with Hosts(tmp_path) as hosts:
        one, other = hosts.add("one"), hosts.add("other")
        assert one.run("hostname", timeout_s=60).stdout.strip() == "one"
        one.run("sh", "-c", "echo mine > /tmp/file", timeout_s=60)
        assert one.run("cat", "/tmp/file", timeout_s=60).stdout == "mine\n"
        assert other.run("cat", "/tmp/file", timeout_s=60).returncode != 0
        listening = one.start("sh", "-c", "sleep 1000", log=tmp_path / "log")
        deadline = time.monotonic() + 60
        while listening.pid not in one.pids():
            assert time.monotonic() < deadline, "it did not enter its host"
        one.vanish()
        assert one.pids() == []
        assert left_behind()
    assert left_behind() == []


def test_a_bridge_whose_lab_was_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    if reason := why_no_hosts():
        pytest.skip(reason)
    ended = python("import os; print(os.getpid())").stdout.strip()
    bridges = [f"usl{ended}br", f"usl{os.getpid()}pbr"]
    for bridge in bridges:
        ip("link", "add", bridge, "type", "bridge")
    try:
        with Hosts(tmp_path):
            there = ip("-br", "link")
        assert bridges[0] not in there
        assert bridges[1] in there, "not the name of a lab's bridge"
    finally:
        ip("link", "del", bridges[1])


OTHER_LAB = """
import sys
from pathlib import Path
from tools.lab.hosts import Hosts
with Hosts(Path(sys.argv[1])) as hosts:
    print(hosts.add("one").address)
"""


def test_two_labs_and_a_bridge_share_a_machine(tmp_path: Path) -> None:
    if reason := why_no_hosts():
        pytest.skip(reason)
    bridge = f"usl{os.getpid()}x"
    ip("link", "add", bridge, "type", "bridge")
    try:
        ip("addr", "add", "198.18.0.1/16", "dev", bridge)
        ip("link", "set", bridge, "up")
        with Hosts(tmp_path / "first") as first:
            one = first.add("one")
            assert one.address.startswith("198.19."), "the other half is the bridge's"
            other = python(OTHER_LAB, tmp_path / "second")
            assert other.stdout.startswith("198.19.")
            assert other.stdout.rpartition(".")[0] != one.address.rpartition(".")[0]
            with pytest.raises(
                HostsUnavailableError, match="start again, or remove it with `ip link del usl"
            ):
                Hosts(tmp_path / "third").__enter__()  # of this process, so of the first one's names
            assert one.run("hostname", timeout_s=60).stdout == "one\n", "the first one is as it was"
    finally:
        ip("link", "del", bridge)
    assert left_behind() == []


@chosen("number", [signal.SIGINT], [signal.SIGTERM])
def test_an_interrupted_lab_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tools.lab.cluster", "--directory", str(tmp_path / "lab")]
    lab = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    brokers = tmp_path / "lab" / "brokers"
    while not (pids := [int(file.read_text().split()[0]) for file in brokers.glob("*/pid")]):
        assert lab.poll() is None, lab.communicate()[0].decode()
        assert time.monotonic() < deadline, "no broker was started"
        time.sleep(0.1)
    lab.send_signal(number)
    said = lab.communicate(timeout=180)[0].decode()
    assert lab.returncode != 0, said
    assert left_behind(lab.pid) == []
    assert not [pid for pid in pids if still_runs(pid)], said


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_run_trains_over_nine_hosts_without_a_shared_disk_and_through_faults(tmp_path: Path) -> None:
    """``make cluster-lab ARGS="--faults all"`` does the other faults."""
    if reason := why_unavailable():
        pytest.skip(reason)
    faults = [FAULTS[name] for name in ("links-moment", "processors-vanish", "broker-in-commit")]
    said: list[str] = []
    actors: list[dict[str, list[str]]] = []

    with Lab(tmp_path) as lab:

        def say(line: str) -> None:
            said.append(line)
            actors.append(lab.actors())

        results = do_faults(lab, faults, ["learner.iterations=1000000", "evaluation.opponents=[]"], say)
        places = re.findall(r"(learner|engine)[ 0-9]*: on the CPU of ([\w-]+)", lab.last_words("train", 1000))
    planned = {host: part for part, host in places}
    assert planned == {RAY_WORKERS[0]: "learner", RAY_WORKERS[1]: "engine", RAY_HEAD: "engine"}, places
    kinds = {"learner": "LearnerActor", "engine": "EngineActor"}
    assert any(all(kinds[part] in now[host] for host, part in planned.items()) for now in actors), actors
    assert [result.failure for result in results] == [""] * len(faults), "\n".join(said)
    assert {(result.audit, result.verify, result.trained_twice) for result in results} == {
        ("balanced", "verified", 0)
    }
    assert all(result.next_update_s is not None for result in results)
    assert left_behind() == []
