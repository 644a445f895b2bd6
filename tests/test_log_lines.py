"""The output of a script that uses the package is the script's own."""

import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

pytestmark = pytest.mark.longer

LINES = """
import structlog
from unstable_stream.console import get_logger
lines = get_logger("unstable_stream.somewhere").bind(run="demo")
lines.info("one")
lines.warning("two", why="because")
assert not structlog.is_configured(), "that is for the program to do"
structlog.configure(processors=[structlog.processors.KeyValueRenderer(sort_keys=True)])
lines.info("three")
"""
RUN = """
import sys
import unstable_stream as us
run = us.build(
    model="tiny-player", train_envs=["SimpleTak-v0-train"], backend="inline", data="data", iterations=1,
    num_workers=4, num_eval_workers=1, batch_size=8, mini_batch_size=8, max_turns=4, max_tokens=4,
)
print("starts")
run.start(live=False)
print([each.state for each in us.list_runs("data")], run.audit().problems)
print(us.sql("SELECT count(*) > 0 FROM game_outcomes", data="data").rows())
print("ray" in sys.modules)
"""


def _run(program: str, cwd: Path, stderr: IO[str] | int = subprocess.PIPE) -> tuple[list[str], list[str]]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=cwd, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), (done.stderr or "").splitlines()


def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(tmp_path: Path) -> None:
    told = """
from unstable_stream.console import get_logger
get_logger("unstable_stream.somewhere").error("three")
print("went on")
"""
    with Path("/dev/full").open("w") as full_disk:
        assert _run(told, tmp_path, full_disk) == (["went on"], [])


def test_without_a_configuration_warnings_go_to_stderr_and_the_rest_nowhere(tmp_path: Path) -> None:
    printed, (warning,) = _run(LINES, tmp_path)
    assert printed == ["event='three' run='demo'"], "configured by then"
    assert "[warning" in warning
    assert "two" in warning
    assert "run=demo why=because" in warning


@pytest.mark.long
def test_a_run_in_a_script_is_one_process_and_prints_what_the_script_prints(tmp_path: Path) -> None:
    printed, _ = _run(RUN, tmp_path)
    assert printed == ["starts", "['completed'] ()", "[(True,)]", "False"], "Ray is not loaded"
