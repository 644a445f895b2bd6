"""A process writes the error it dies of beside its output; one that could not has left its last lines."""

import os
import subprocess
import sys
from pathlib import Path

from unstable_stream.errors import LearnerError, OffsetOutOfRangeError, StoreUnavailableError
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.death import Death, Output, write_death


def test_the_error_is_known_with_its_type_and_whether_it_may_pass(tmp_path: Path) -> None:
    output = Output(tmp_path / "logs" / "learner.log")
    write_death(output.path, LearnerError("the loss is nan\nat update 3"))
    assert output.death() == Death("LearnerError", "the loss is nan\nat update 3", pid=os.getpid())
    assert output.death(os.getpid()) == output.death()
    assert output.death(os.getppid()) is None, "another process wrote it"
    assert str(output.death()) == "LearnerError: the loss is nan at update 3"
    write_death(output.path, StoreUnavailableError("s3://runs could not be reached"))
    assert output.death() == Death(
        "StoreUnavailableError", "s3://runs could not be reached", retriable=True, pid=os.getpid()
    )
    write_death(output.path, OffsetOutOfRangeError("half of a character: \ud83d"))
    assert output.death() == Death(
        "OffsetOutOfRangeError", "half of a character: ?", final=True, pid=os.getpid()
    )
    write_death(output.path, MemoryError())
    assert str(output.death()) == "MemoryError"
    assert len(str(Death("KeyError", "x" * 10_000))) < 700


def test_only_what_came_since_the_start_counts(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.log"
    path.write_text("of the start before\n")
    write_death(path, ValueError("of the start before"))
    output = Output(path)
    assert (output.death(), output.last_lines()) == (None, "")
    with path.open("a") as file:
        file.write("x" * 1_000_000 + "\n\nloading\n  Fatal Python error: Aborted\nno core\n\n")
    assert output.last_lines() == "loading | Fatal Python error: Aborted | no core"


def test_a_file_that_was_cut_off_or_cannot_be_written_is_no_death(tmp_path: Path) -> None:
    output = Output(tmp_path / "learner.log")
    output.path.with_suffix(".error.json").write_text('{"type": "Val')
    assert output.death() is None
    (tmp_path / "file").touch()
    write_death(tmp_path / "file" / "learner.log", ValueError())


def test_a_service_leaves_the_error_that_ends_it(tmp_path: Path) -> None:
    output = Output(DataDir(tmp_path).service_logs("gone") / "archiver.log")
    arguments = ("archiver", "--run", "gone", "--data", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "unstable_stream.services.launch.service", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert str(output.death()) == "RunError: no run 'gone' in this log; known runs: none"
    assert str(output.death()) in done.stderr
