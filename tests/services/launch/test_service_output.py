"""Log lines for machines are one JSON object each, whoever wrote them."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import logging, sys
import structlog
from unstable_stream.services.launch.service_output import configure_output
configure_output("archiver", "demo-1")
structlog.get_logger().warning("record rejected", record="steps[3]@17", reason="a\\nb")
logging.getLogger("somebody").warning("went %s", "wrong")
logging.getLogger("aiokafka").info("chatter")
"""


def output(program: str, **environment: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


def as_json(program: str) -> tuple[int, list[dict[str, Any]]]:
    status, lines = output(program, UNSTABLE_STREAM_LOG_FORMAT="json")
    return status, [json.loads(line) for line in lines]


def test_our_lines_and_those_of_libraries_have_the_same_fields() -> None:
    status, (ours, theirs) = as_json(PROGRAM)
    assert status == 0
    assert (ours["event"], ours["record"], ours["reason"]) == ("record rejected", "steps[3]@17", "a\nb")
    assert (theirs["event"], theirs["logger"]) == ("went wrong", "somebody")
    for line in (ours, theirs):
        assert (line["service"], line["run"], line["level"]) == ("archiver", "demo-1", "warning")
        assert line["timestamp"].endswith("Z")


def test_the_end_by_a_bug_is_a_line_too() -> None:
    status, (line,) = as_json(
        "from unstable_stream.services.launch.service_output import configure_output\n"
        "configure_output('learner')\n"
        "raise ZeroDivisionError('by zero')"
    )
    assert status == 1
    assert (line["level"], line["error"]) == ("critical", "ZeroDivisionError: by zero")
    assert line["exception"][0]["exc_type"] == "ZeroDivisionError"
    assert "run" not in line


def test_for_people_lines_are_text() -> None:
    status, lines = output(PROGRAM, UNSTABLE_STREAM_LOG_FORMAT="console")
    assert status == 0
    assert "record rejected" in lines[0]
    assert "service=archiver" in lines[0]
    assert "\x1b" not in "".join(lines)
    with pytest.raises(ValueError, match=r"Expecting|Extra data"):
        json.loads(lines[0])


def test_an_unknown_format_is_refused() -> None:
    status, lines = output(PROGRAM, UNSTABLE_STREAM_LOG_FORMAT="xml")
    assert status == 1
    assert lines[-1].endswith("UNSTABLE_STREAM_LOG_FORMAT='xml': expected console or json")
