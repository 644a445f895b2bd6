"""Each game has random generators of its own; everything else finds the global ones untouched."""

import random
import re
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from unstable_stream.games.isolation import PrivateRandomness


def draw() -> list[object]:
    deck = list(range(10))
    random.shuffle(deck)
    from_python = [random.random(), random.randint(0, 99), deck, random.choice("abcdefgh")]
    return [*from_python, np.random.rand(), np.random.randint(100), np.random.permutation(5).tolist()]


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)


def test_the_private_generator_gives_what_the_global_one_gives_for_the_same_seed() -> None:
    seed(11)
    expected = draw()
    with PrivateRandomness(11):
        assert draw() == expected
    with PrivateRandomness(99):
        seed(11)
        assert draw() == expected


def test_another_thread_finds_the_global_ones_and_the_output_meanwhile(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed(8)
    expected = draw()
    alone = PrivateRandomness(4)
    with alone:
        private = draw()
    seed(8)
    found = []

    def other() -> None:
        found.append(draw())
        print("said by a notebook")

    with PrivateRandomness(4):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        print("said by an environment")
        assert draw() == private, "nobody has drawn from the game's"
    assert found == [expected]
    assert capsys.readouterr().out == "said by a notebook\n"


def test_the_outside_is_untouched_also_after_an_exception(capsys: pytest.CaptureFixture[str]) -> None:
    seed(5)
    before = random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]
    functions = random.shuffle, np.random.shuffle, sys.stdout
    private = PrivateRandomness(3)

    def fail() -> None:
        with private:
            seed(1)
            draw()
            print("debugging line of an environment")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]) == before
    assert (random.shuffle, np.random.shuffle, sys.stdout) == functions
    assert capsys.readouterr().out == ""
    with private:  # the lock was released too
        pass


def test_threads_take_turns() -> None:
    results: dict[int, list[float]] = {}

    def run(number: int) -> None:
        private = PrivateRandomness(number)
        numbers = []
        for _ in range(300):
            with private:
                numbers.append(random.random())
        results[number] = numbers

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        expected = random.Random(number)
        assert results[number] == [expected.random() for _ in range(300)]


def test_no_module_of_textarena_binds_a_random_function_early() -> None:
    spec = find_spec("textarena")
    assert spec is not None
    assert spec.origin is not None
    sources = sorted(Path(spec.origin).parent.rglob("*.py"))
    assert len(sources) > 200
    early = re.compile(r"^\s*from (?:random|numpy\.random) import", re.MULTILINE)
    assert [str(path) for path in sources if early.search(path.read_text(encoding="utf-8"))] == []
