"""Whole runs of the real services under faults: a few dozen here, any number with ``make simulate``."""

import os
import re
import sys

import pytest

from tests.processes import ROOT, completed
from tests.simulation.broken import MISTAKES

SEEDS = 24
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def simulation(*arguments: str) -> tuple[int, str]:
    """Run the command as a person does; return its exit code and output."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = completed(sys.executable, "-m", "tests.simulation", *arguments, timeout=800, cwd=ROOT, env=env)
    return done.returncode, done.stdout + (done.stderr if done.returncode not in (0, 1) else "")


def test_no_seed_finds_anything() -> None:
    code, told = simulation("--seeds", str(SEEDS))
    assert code == 0, told
    assert f"{SEEDS} seeds in" in told


@pytest.mark.long
def test_a_seed_is_the_same_story_in_every_process() -> None:
    stories = []
    for _ in range(2):
        code, told = simulation("--seed", "5")
        assert code == 0, told
        stories.append(re.findall(r"trace ([0-9a-f]{32})", told))
    assert stories[0] == stories[1] != []


@pytest.fixture(scope="module")
def found() -> list[str]:
    """What is said of each mistake, by one process: it takes as long to load as to find most of them."""
    code, told = simulation("--seeds", "200", "--mistake", *MISTAKES)
    assert code == 1, told
    return re.split(r"^mistake: ", told, flags=re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_finds_a_mistake(mistake: str, found: list[str]) -> None:
    (told,) = (part for part in found if part.startswith(f"{mistake}\n"))
    assert re.search(r"replay it: .*--seed \d+ --trace", told), f"{mistake} was not found:\n{told}"
