"""The cache of a host: fetched once for all its processes, bounded, and never taken from under anybody."""

import fcntl
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from unstable_stream.errors import ConfigError, StoreError
from unstable_stream.log.stores.cache import HostCache
from unstable_stream.log.stores.store import waiting_until

DEADLINE_S = 60.0


def filling(size: int, fetched: list[Path]) -> Callable[[Path], None]:
    """A fetch of so many bytes that is noted."""

    def fetch(directory: Path) -> None:
        fetched.append(directory)
        # Whole or not at all: has_file is asked while others fetch.
        part = directory / "part"
        part.write_bytes(b"x" * size)
        part.rename(directory / "file")

    return fetch


def has_file(directory: Path) -> bool:
    return (directory / "file").is_file()


def use(cache: HostCache, address: str, size: int, fetched: list[Path]) -> Path:
    with cache.fetched(address, has_file, filling(size, fetched)) as directory:
        assert has_file(directory)
        assert directory == cache.directory(address)
        return directory


def test_the_longest_unused_goes_first_and_the_rest_is_within_the_bound(tmp_path: Path) -> None:
    cache, fetched = HostCache(tmp_path, max_bytes=250), list[Path]()
    one, two = (use(cache, f"s3://b/{name}", 100, fetched) for name in (1, 2))
    for directory, at in ((one, 10), (two, 20)):
        os.utime(directory.parent / "use", (at, at))
    use(cache, "s3://b/1", 100, fetched)  # so the second is now the longest unused
    use(cache, "s3://b/3", 100, fetched)
    assert one.is_dir()
    assert not two.exists()
    use(cache, "s3://b/2", 100, fetched)
    assert [path.parent.name for path in fetched].count(two.parent.name) == 2
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_what_is_in_use_stays_whatever_the_bound(tmp_path: Path) -> None:
    cache, fetched = HostCache(tmp_path, max_bytes=150), list[Path]()
    with cache.fetched("s3://b/1", has_file, filling(100, fetched)) as one:
        with cache.fetched("s3://b/2", has_file, filling(100, fetched)) as two:
            assert has_file(one)
            assert has_file(two)
        cache.evict()
        assert has_file(one)
        assert not two.exists()
    use(cache, "s3://b/2", 100, fetched)
    assert not one.exists()


def test_a_wait_for_another_process_ends_when_nobody_wants_it(tmp_path: Path) -> None:
    cache, ends = HostCache(tmp_path, max_bytes=1000), threading.Event()
    entry = cache.directory("s3://b/1").parent
    entry.mkdir(parents=True)
    with (entry / "fetch").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(0.2, ends.set).start()
        with waiting_until(ends), pytest.raises(StoreError, match="given up"):
            use(cache, "s3://b/1", 10, [])


def test_a_failed_fetch_is_made_again_by_the_next(tmp_path: Path) -> None:
    cache, fetched = HostCache(tmp_path, max_bytes=1000), list[Path]()

    def fails(directory: Path) -> None:
        raise FileNotFoundError("no such object")

    with pytest.raises(FileNotFoundError), cache.fetched("s3://b/1", has_file, fails):
        raise AssertionError("nothing was fetched")
    use(cache, "s3://b/1", 10, fetched)
    assert len(fetched) == 1


def test_a_cache_that_cannot_be_written_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = HostCache(tmp_path / "file", max_bytes=1000)
    with pytest.raises(StoreError, match="UNSTABLE_STREAM_CACHE"):
        use(cache, "s3://b/1", 10, [])
    with pytest.raises(StoreError, match="UNSTABLE_STREAM_CACHE"), cache.saving():
        raise AssertionError("no directory was made")


def test_the_environment_says_where_and_how_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSTABLE_STREAM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert HostCache.of_host().root == tmp_path / "unstable_stream"
    assert HostCache.of_host().max_bytes == 20_000_000_000
    monkeypatch.setenv("UNSTABLE_STREAM_CACHE", str(tmp_path / "fast"))
    monkeypatch.setenv("UNSTABLE_STREAM_CACHE_GB", "0.5")
    assert HostCache.of_host().root == tmp_path / "fast"
    assert HostCache.of_host().max_bytes == 500_000_000
    monkeypatch.setenv("UNSTABLE_STREAM_CACHE_GB", "much")
    with pytest.raises(ConfigError, match="UNSTABLE_STREAM_CACHE_GB"):
        HostCache.of_host()


def test_what_a_dead_process_was_saving_is_removed_and_what_a_living_one_saves_is_not(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, max_bytes=1000)
    left = tmp_path / "saving" / "0123456789abcdef"
    left.mkdir(parents=True)
    (left / "weights").write_bytes(b"half")
    with cache.saving() as living:
        (living / "weights").write_bytes(b"half")
        with cache.saving() as other:
            assert other != living
        assert (living / "weights").is_file()
        assert not left.exists()
    assert not list((tmp_path / "saving").iterdir())


def test_what_was_saved_here_is_not_fetched(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, max_bytes=1000)
    with cache.saving() as root:
        (root / "ckpt").mkdir()
        (root / "ckpt" / "file").write_bytes(b"weights")
        cache.keep("s3://b/ckpt", root / "ckpt")
    fetched: list[Path] = []
    directory = use(cache, "s3://b/ckpt", 10, fetched)
    assert (directory / "file").read_bytes() == b"weights"
    assert not fetched


def _use_in_process(root: Path, together: Barrier, count: Path, size: int) -> None:
    """Fetch the same directory at the same moment as others, and note each fetch with a line."""

    def fetch(directory: Path) -> None:
        with count.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write("fetched\n")
        (directory / "file").write_bytes(b"x" * size)

    together.wait(DEADLINE_S)
    with HostCache(root, max_bytes=1000).fetched("s3://b/1", has_file, fetch) as directory:
        assert has_file(directory)
        together.wait(DEADLINE_S)  # all have it at once


def test_several_processes_fetch_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    together, count = context.Barrier(3), tmp_path / "count"
    processes = [
        context.Process(target=_use_in_process, args=(tmp_path / "cache", together, count, 100))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(DEADLINE_S)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert count.read_text() == "fetched\n"


def test_threads_that_fetch_and_evict_at_once_always_have_what_they_use(tmp_path: Path) -> None:
    """The bound has room for one of four: every use evicts others, and nobody loses what it reads."""
    cache = HostCache(tmp_path, max_bytes=150)
    wrong: list[str] = []
    ends = time.monotonic() + 1.0

    def work(number: int) -> None:
        while time.monotonic() < ends:
            address = f"s3://b/{number}"
            try:
                with cache.fetched(address, has_file, filling(100, [])) as directory:
                    cache.evict()
                    if len((directory / "file").read_bytes()) != 100:
                        wrong.append(f"{address}: cut short")
            except OSError as error:
                wrong.append(f"{address}: {error!r}")
                raise

    threads = [threading.Thread(target=work, args=(number % 4,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert wrong == []
