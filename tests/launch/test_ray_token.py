"""A stranger who reaches the Ray instance of a run may not use it."""

import json
import os
import subprocess
import sys

import pytest

# As the launcher does: start Ray, and start a process of the run, which connects. Then it waits.
LAUNCHER = """
import json, subprocess, sys
from unstable_stream.launch.ray.services import _start

address = _start()
own = subprocess.run([sys.executable, "-c", sys.argv[1], address], capture_output=True, text=True)
print(json.dumps({"address": address, "own": own.returncode, "said": own.stderr[-500:]}), flush=True)
sys.stdin.read()
"""
USE = """
import logging, sys
import ray

ray.init(address=sys.argv[1], logging_level=logging.CRITICAL, log_to_driver=False)
assert ray.get(ray.remote(lambda: 42).remote()) == 42
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_only_the_runs_own_processes_can_use_its_ray() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, USE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        told = json.loads(launcher.stdout.readline())
        assert told["own"] == 0, told["said"]
        stranger = subprocess.run(
            [sys.executable, "-c", USE, told["address"]],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert stranger.returncode != 0
        assert "Authentication token is missing or incorrect" in stranger.stderr
        guessed = subprocess.run(
            [sys.executable, "-c", USE, told["address"]],
            capture_output=True,
            text=True,
            env=environment | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
            check=False,
        )
        assert guessed.returncode != 0
        launcher.stdin.close()


def test_what_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from unstable_stream.launch.ray.token import set_token

    monkeypatch.delitem(sys.modules, "ray", raising=False)
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    set_token()
    assert "RAY_AUTH_MODE" not in os.environ
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    set_token()
    assert "RAY_AUTH_TOKEN" not in os.environ
    monkeypatch.delenv("RAY_AUTH_MODE")
    set_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    monkeypatch.setitem(sys.modules, "ray", None)  # imported
    monkeypatch.delenv("RAY_AUTH_MODE")
    set_token()
    assert "RAY_AUTH_MODE" not in os.environ
    monkeypatch.delenv("RAY_AUTH_TOKEN")
