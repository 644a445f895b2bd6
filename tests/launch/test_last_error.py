"""The error that matters is found in what real processes printed, and equal ones are recognised."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unstable_stream.errors import StoreUnavailableError
from unstable_stream.launch.last_error import Output, last_error, same_error
from unstable_stream.stores import Store

OUTPUTS = Path(__file__).with_name("outputs")
"""What processes printed: vLLM 0.32 on a CPU with our engine's last words."""

PROGRAMS = {
    "raises": ("raise ValueError('no such seat')", "ValueError: no such seat"),
    "within a library": ("import json; json.loads('{')", "JSONDecodeError: Expecting property name enclosed"),
    "a cause": (
        "try: {}['seat']\nexcept KeyError as error: raise RuntimeError('the game is unknown') from error",
        "RuntimeError: the game is unknown",
    ),
    "a type that is not called an error": (
        "class Refused(Exception): pass\nraise Refused('the key')",
        "Refused: the key",
    ),
    "without a message": ("raise MemoryError", "MemoryError"),
    "several lines": (
        "import pydantic\nclass M(pydantic.BaseModel): n: int\nM(n='x')",
        "ValidationError: 1 validation error for M n Input should be a valid integer",
    ),
    "a notice after it": (
        "import atexit, sys; atexit.register(lambda: print('closing the log', file=sys.stderr)); 1 / 0",
        "ZeroDivisionError: division by zero",
    ),
    "a crash": ("import faulthandler, os; faulthandler.enable(); os.abort()", "Aborted"),
    "one line": ("import sys; sys.exit('LearnerError: the loss is nan')", "LearnerError: the loss is nan"),
}


def printed(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_found_in_what_a_process_printed(name: str) -> None:
    program, says = PROGRAMS[name]
    found = last_error(printed(program))
    assert found is not None
    assert found.startswith(says)
    assert "\n" not in found


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "vllm-without-weights",
            "RuntimeError: Cannot find any model weights with `/models/without-weights`",
        ),
        ("vllm-too-little-memory", "ValueError: No available memory for the cache blocks."),
    ],
)
def test_the_cause_is_told_and_not_the_error_that_points_at_it(name: str, says: str) -> None:
    text = (OUTPUTS / f"{name}.log").read_text()
    found = last_error(text)
    assert found is not None
    assert found.startswith(says)
    last_line = text.splitlines()[-1]
    assert last_error(last_line) == last_line  # where nothing else is known


def test_log_lines_for_machines_say_it_too() -> None:
    lines = [
        {"event": "service failed", "error": "LearnerError: no", "level": "error"},
        {"event": "stopped", "level": "info"},
    ]
    assert last_error("\n".join(map(json.dumps, lines))) == "LearnerError: no"


@pytest.mark.parametrize("text", ["", "loading\nready: yes\n", "Errors: 0\n", '{"event": "x"}\n{broken'])
def test_output_without_an_error_has_none(text: str) -> None:
    assert last_error(text) is None


def test_only_what_was_printed_since_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.log"
    assert Output(path).text() == ""
    path.write_text("ValueError: of the start before\n")
    output = Output(path)
    assert last_error(output.text()) is None
    with path.open("a") as file:
        file.write("x" * 10_000_000 + "\nValueError: of this start\n")
    assert last_error(output.text()) == "ValueError: of this start"


def test_errors_are_the_same_if_only_numbers_differ() -> None:
    one = f"RuntimeError: pid {signal.SIGTERM} at 0x7fa3b2 after 1.5 s"
    assert same_error(one, "RuntimeError: pid 4711 at 0xdead after 12.25 s")
    assert not same_error(one, one.replace("pid", "process"))


def test_a_store_that_is_away_is_the_same_error_whatever_was_wanted_of_it() -> None:
    """Each attempt to save a checkpoint has a name of its own, a connection fails in several ways, and what
    an actor did not survive is told by another process.
    """

    def raised(address: str, name: str, failure: Exception) -> str:
        store = Store(address, patience_s=0)

        def fail() -> None:
            raise failure

        with pytest.raises(StoreUnavailableError) as found:
            store._call(f"write {name}", fail)
        return f"{type(found.value).__name__}: {found.value}"

    one = raised("memory://runs/a", "ckpt-000003-ab12cd34/state.json", ConnectionRefusedError("refused"))
    assert same_error(
        one, raised("memory://runs/a", "ckpt-000003-fe98dc76/adapter.json", TimeoutError("late"))
    )
    assert same_error(one, raised("memory://runs/a/ckpt-000003-fe98dc76", "state.json", TimeoutError()))
    assert same_error(one, f"ServiceError: learner died: {one} (all of it: /data/learner.log)")
    assert not same_error(one, raised("memory://others/a", "ckpt-000003-ab12cd34/state.json", TimeoutError()))
