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


def draw() -> tuple[float, int, list[int], str]:
    deck = list(range(10))
    random.shuffle(deck)
    return random.random(), random.randint(0, 99), deck, random.choice("abcdefgh")


def draw_numpy() -> tuple[float, int, list[int]]:
    return float(np.random.rand()), int(np.random.randint(100)), np.random.permutation(5).tolist()


def test_the_private_generator_gives_what_the_global_one_gives_for_the_same_seed() -> None:
    random.seed(11)
    np.random.seed(11)
    expected = draw(), draw_numpy()
    with PrivateRandomness(11, with_numpy=True):
        assert (draw(), draw_numpy()) == expected
    with PrivateRandomness(99, with_numpy=True):
        random.seed(11)
        np.random.seed(11)
        assert (draw(), draw_numpy()) == expected


def test_interleaved_generators_go_on_where_they_were() -> None:
    alone = PrivateRandomness(1, with_numpy=True)
    serial = []
    for _ in range(3):
        with alone:
            serial.append((draw(), draw_numpy()))
    one, two = PrivateRandomness(1, with_numpy=True), PrivateRandomness(2, with_numpy=True)
    interleaved = []
    for _ in range(3):
        with one:
            interleaved.append((draw(), draw_numpy()))
        with two:
            draw(), draw_numpy()
        random.random()
    assert interleaved == serial


def test_another_thread_finds_the_global_ones_and_the_output_meanwhile(
    capsys: pytest.CaptureFixture[str],
) -> None:
    random.seed(8)
    np.random.seed(8)
    expected = draw(), draw_numpy()
    alone = PrivateRandomness(4, with_numpy=True)
    with alone:
        private = draw(), draw_numpy()
    random.seed(8)
    np.random.seed(8)
    found = []

    def other() -> None:
        found.append((draw(), draw_numpy()))
        print("said by a notebook")

    with PrivateRandomness(4, with_numpy=True):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        print("said by an environment")
        assert (draw(), draw_numpy()) == private, "nobody has drawn from the game's"
    assert found == [expected]
    assert capsys.readouterr().out == "said by a notebook\n"


def test_the_outside_is_untouched_also_after_an_exception(capsys: pytest.CaptureFixture[str]) -> None:
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]
    functions = random.shuffle, np.random.shuffle, sys.stdout
    private = PrivateRandomness(3, with_numpy=True)

    def fail() -> None:
        with private:
            random.seed(1)
            np.random.seed(1)
            draw(), draw_numpy()
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

    def run(seed: int) -> None:
        private = PrivateRandomness(seed, with_numpy=False)
        numbers = []
        for _ in range(300):
            with private:
                numbers.append(random.random())
        results[seed] = numbers

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        expected = random.Random(seed)
        assert results[seed] == [expected.random() for _ in range(300)]


def test_no_module_of_textarena_binds_a_random_function_early() -> None:
    spec = find_spec("textarena")
    assert spec is not None
    assert spec.origin is not None
    sources = sorted(Path(spec.origin).parent.rglob("*.py"))
    assert len(sources) > 200
    early = re.compile(r"^\s*from (?:random|numpy\.random) import", re.MULTILINE)
    assert [str(path) for path in sources if early.search(path.read_text(encoding="utf-8"))] == []
