"""A stranger who reaches the Ray instance of a run may not use it."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.processes import completed

# As the launcher does: start Ray, and start a process of the run, which connects. Then it waits.
LAUNCHER = """
import json, subprocess, sys
from unstable_stream.services.launch.ray.cluster import start_local

address = start_local()
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
def test_only_the_users_own_processes_can_use_the_ray_of_a_run(tmp_path: Path) -> None:
    def environment(home: str) -> dict[str, str]:
        """Of a user with a home of their own, where Ray keeps the token."""
        (tmp_path / home).mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return kept | {"HOME": str(tmp_path / home)}

    stranger = environment("stranger")
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, USE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment("owner"),
    ) as launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        told = json.loads(launcher.stdout.readline())
        assert told["own"] == 0, told["said"]
        use = partial(completed, sys.executable, "-c", USE, told["address"])
        guesses: list[dict[str, str]] = [{}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}]
        with ThreadPoolExecutor() as strangers:  # at once: each waits long for an answer
            for tried in strangers.map(lambda guess: use(env=stranger | guess), guesses):
                assert tried.returncode != 0
                assert "Authentication token is missing or incorrect" in tried.stderr
        launcher.stdin.close()
