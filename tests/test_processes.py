"""Questions to a process that ends meanwhile."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.processes import children_of, command_of, end_together, send, still_runs


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_that_runs(child: "subprocess.Popen[bytes]") -> None:
    process = psutil.Process(child.pid)
    assert command_of(process).endswith("-c input()")
    assert still_runs(process)
    assert still_runs(child.pid)
    assert process in children_of(psutil.Process())


@pytest.mark.parametrize("reaped", [False, True], ids=["a zombie", "gone"])
def test_a_process_that_has_just_ended(child: "subprocess.Popen[bytes]", reaped: bool) -> None:
    process = psutil.Process(child.pid)
    assert send(process)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    if reaped:
        child.wait()
    assert command_of(process) == ""
    assert children_of(process) == []
    assert not still_runs(process)
    assert not still_runs(child.pid)
    assert end_together([process], within_s=0.0) == []
    if reaped:
        assert not send(process, signal.SIGCONT)
        assert not send(child.pid, signal.SIGCONT)


def test_a_process_that_nobody_may_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: psutil.Process, *_: object, **__: object) -> None:
        raise psutil.AccessDenied(self.pid)

    process = psutil.Process()
    for asked in ("cmdline", "children", "status"):
        monkeypatch.setattr(psutil.Process, asked, refuse)
    assert (command_of(process), children_of(process), still_runs(process)) == ("", [], False)
