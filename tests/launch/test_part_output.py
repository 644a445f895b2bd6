"""What Ray actors print lands in the run's logs, and the death of one is explained from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unstable_stream.errors import ServiceError
from unstable_stream.launch.last_error import Output
from unstable_stream.launch.ray.part_output import PartDiedError, explain

_PROGRAM = """
import json, os, subprocess, sys
from pathlib import Path
import ray
from unstable_stream.launch.last_error import Output
from unstable_stream.launch.ray.cluster import start_local, stop_local
from unstable_stream.launch.ray.part_output import (
    PartDiedError, explain, printing_errors, reason_of, write_output_to
)
from unstable_stream.log_lines import get_logger

class Actor:
    def __init__(self, output, fails):
        write_output_to(output, "run-test")
        with printing_errors():
            if fails:
                raise ValueError("no weights in the directory")

    def talk(self):
        print("on stdout")
        get_logger("test").info("a line of ours")
        subprocess.run([sys.executable, "-c", "import sys; print('of a child', file=sys.stderr)"], check=True)

    def fail(self):
        with printing_errors():
            raise KeyError("seat 3")

    def crash(self):
        os.abort()

    def be_killed(self):
        os.kill(os.getpid(), 9)

start_local()
logs = Path(sys.argv[1])
told = {}
for method in ("fail", "crash", "be_killed", "__init__"):
    output = Output(logs / f"{method}.log")
    actor = ray.remote(Actor).options(num_cpus=0).remote(output.path, method == "__init__")
    try:
        ray.get(actor.talk.remote())
        ray.get(getattr(actor, method).remote())
    except ray.exceptions.RayError as error:
        told[method] = str(explain(PartDiedError("engine-0", reason_of(error)), {"engine-0": output}))
(logs / "told.json").write_text(json.dumps(told))  # Ray prints to stdout too
stop_local()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_an_actor_and_its_child_print_is_in_the_logs_and_explains_its_death(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(logs)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((logs / "told.json").read_text())
    reasons = {
        "fail": "KeyError: 'seat 3'",
        "crash": "Aborted",
        "be_killed": "its process ended without a word: killed, or out of memory",
        "__init__": "ValueError: no weights in the directory",
    }
    assert told == {
        method: f"engine 0 died: {reason} (all of it: {logs / method}.log)"
        for method, reason in reasons.items()
    }
    printed = (logs / "fail.log").read_text()
    for line in ("on stdout", "a line of ours", "service=fail", "of a child", "Traceback (most recent call"):
        assert line in printed


def test_the_cause_in_its_log_is_told_where_its_last_words_only_point_at_it(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.log"
    path.write_text("ValueError: of the start before\n")
    outputs = {"engine-0": Output(path)}
    with path.open("a") as file:
        file.write(
            "(EngineCore pid=7) ERROR 01-31 14:25:01 [core.py:1] RuntimeError: CUDA error: device lost\n"
        )
    died = PartDiedError("engine-0", "EngineDiedError: vLLM's engine process for m has died")
    told = explain(died, outputs)
    assert type(told) is ServiceError
    assert str(told) == f"engine 0 died: RuntimeError: CUDA error: device lost (all of it: {path})"
    assert explain(PartDiedError("rollout-0", "KeyError: 1"), {}).args == ("rollout-0", "KeyError: 1")
