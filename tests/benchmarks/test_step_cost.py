"""Where a step's CPU time goes: a line is its innermost package's, a process is known by its mark."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.step_cost import Layers, by_process, layer_of
from unstable_stream.events.id_sets import digest, digest_array


def test_time_goes_to_the_innermost_package() -> None:
    found: list[str] = []

    def digests() -> Iterator[bytes]:
        found.append(layer_of(sys._getframe()))
        yield digest(b"step")

    digest_array(digests())
    assert found == ["events"]
    assert layer_of(None) == "event loop, threads, others"


def test_a_busy_thread_is_seen() -> None:
    with Layers() as layers:
        deadline = time.monotonic() + 60
        while layers.look().get("events", 0.0) < 0.02 and time.monotonic() < deadline:
            for number in range(1000):
                digest(b"%d" % number)
    assert layers.look()["events"] >= 0.02


def test_only_processes_with_the_mark_are_counted() -> None:
    command = [sys.executable, "-c", "input()", "-m unstable_stream.services.launch.service archiver"]
    environment = {**os.environ, "UNSTABLE_STREAM_STEP_COST": "mine"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        deadline = time.monotonic() + 60
        while "archiver" not in by_process("mine") and time.monotonic() < deadline:
            pass
        assert list(by_process("mine")) == ["archiver"]
        assert by_process("another") == {}
        process.stdin.write(b"\n")
        process.stdin.close()
