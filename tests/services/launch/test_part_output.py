"""What Ray actors print lands in the run's logs, and the death of one is explained from there."""

import json
from pathlib import Path

import pytest

from tests.processes import python
from unstable_stream.errors import ServiceError
from unstable_stream.services.launch.ray.part_output import PartDiedError, explain
from unstable_stream.services.launch.service_output import Output, write_death

_PROGRAM = """
import json, os, subprocess, sys
from pathlib import Path
import ray
from unstable_stream.services.launch.service_output import Output
from unstable_stream.services.launch.ray.cluster import start_local, stop_local
from unstable_stream.services.launch.ray.part_output import (
    PartDiedError, explain, printing_errors, reason_of, starting
)
from unstable_stream.console import get_logger

class Actor:
    def __init__(self, output, fails):
        with starting(output, "run-test"):
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
        died = explain(PartDiedError("engine-0", reason_of(error)), {"engine-0": output})
        told[method] = str(died)
(logs / "told.json").write_text(json.dumps(told))  # Ray prints to stdout too
stop_local()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_an_actor_and_its_child_print_is_in_the_logs_and_explains_its_death(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    done = python(_PROGRAM, logs)
    assert done.returncode == 0, done.stderr
    told = json.loads((logs / "told.json").read_text())
    fail, crash, killed, start = (told[name] for name in ("fail", "crash", "be_killed", "__init__"))
    assert fail == f"engine 0 died: KeyError: 'seat 3' (all of it: {logs}/fail.log)"
    assert start == (
        f"engine 0 died: ValueError: no weights in the directory (all of it: {logs}/__init__.log)"
    )
    for said in (crash, killed):
        assert said.startswith("engine 0 died: its process ended without a word: killed, crashed, or out of")
    assert "of a child (all of it" in killed, "what it printed last"
    printed = (logs / "fail.log").read_text()
    for line in ("on stdout", "a line of ours", "service=fail", "of a child", "Traceback (most recent call"):
        assert line in printed


def test_a_part_is_explained_by_what_it_left(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.log"
    outputs = {"engine-0": Output(path)}
    told = explain(PartDiedError("engine-0", "EngineDiedError: vLLM's engine process has died"), outputs)
    assert type(told) is ServiceError
    assert str(told) == (
        f"engine 0 died: EngineDiedError: vLLM's engine process has died (all of it: {path})"
    )
    write_death(path, ValueError("no weights"))
    died = PartDiedError("engine-0", "it could not start: what Ray kept of it")
    assert str(explain(died, outputs)) == f"engine 0 died: ValueError: no weights (all of it: {path})"
    # One that started and died later: what is written there is of a successor that could not start.
    died = PartDiedError("engine-0", "KeyError: 1")
    assert str(explain(died, outputs)) == f"engine 0 died: KeyError: 1 (all of it: {path})"
    told = explain(PartDiedError("rollout-0", "KeyError: 1"), {})
    assert (type(told), str(told)) == (ServiceError, "rollout 0 died: KeyError: 1")
