"""Log lines for machines are one JSON object each; the error that a process dies of is beside its output."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.processes import python
from unstable_stream.errors import LearnerError, OffsetOutOfRangeError
from unstable_stream.services.launch.service_output import Death, Output, write_death

PROGRAM = """
import logging, sys
import structlog
from unstable_stream.services.launch.service_output import configure_output
configure_output("archiver", "demo-1")
structlog.get_logger().warning("record rejected", record="steps[3]@17", reason="a\\nb")
logging.getLogger("somebody").warning("went %s", "wrong")
logging.getLogger("aiokafka").info("chatter")
raise ZeroDivisionError('by zero')
"""


def output(form: str) -> list[str]:
    done = python(PROGRAM, UNSTABLE_STREAM_LOG_FORMAT=form)
    assert done.returncode == 1
    return done.stderr.splitlines()


def test_our_lines_those_of_libraries_and_the_end_by_a_bug_have_the_same_fields() -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in output("json")]
    ours, theirs, end = lines
    assert (ours["event"], ours["record"], ours["reason"]) == ("record rejected", "steps[3]@17", "a\nb")
    assert (theirs["event"], theirs["logger"]) == ("went wrong", "somebody")
    assert end["error"] == "ZeroDivisionError: by zero"
    assert end["exception"][0]["exc_type"] == "ZeroDivisionError"
    for line, level in zip(lines, ("warning", "warning", "critical"), strict=True):
        assert (line["service"], line["run"], line["level"]) == ("archiver", "demo-1", level)
        assert line["timestamp"].endswith("Z")


def test_for_people_lines_are_text_and_an_unknown_format_is_refused() -> None:
    lines = output("console")
    assert "record rejected" in lines[0]
    assert "service=archiver" in lines[0]
    assert "\x1b" not in "".join(lines)
    with pytest.raises(ValueError, match=r"Expecting|Extra data"):
        json.loads(lines[0])
    assert output("xml")[-1].endswith("UNSTABLE_STREAM_LOG_FORMAT='xml': expected console or json")


def test_the_error_is_known_with_its_type_and_whether_a_start_would_be_in_vain(tmp_path: Path) -> None:
    output = Output(tmp_path / "logs" / "learner.log")
    write_death(output.path, LearnerError("the loss is nan\nat update 3"))
    assert output.death() == Death("LearnerError", "the loss is nan\nat update 3", pid=os.getpid())
    assert output.death(os.getpid()) == output.death()
    assert output.death(os.getppid()) is None, "another process wrote it"
    assert str(output.death()) == "LearnerError: the loss is nan at update 3"
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
