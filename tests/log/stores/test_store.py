"""What every store does: in this process, on the file system, and behind a real server of the S3 protocol."""

import hashlib
import os
import resource
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from infra.s3.server import S3Server
from tests.log.stores.gate import Gate
from unstable_stream.errors import StoreError, StoreUnavailableError
from unstable_stream.log.stores.cache import HostCache
from unstable_stream.log.stores.store import Store, ThisHostError, is_passing, store_wait_s

pytestmark = pytest.mark.longer


@pytest.fixture(params=["memory", "file", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place of the test's own in a store of each kind."""
    if request.param == "memory":
        return f"memory://{secrets.token_hex(6)}/runs"
    if request.param == "file":
        return f"file://{tmp_path}/store"
    found: str = request.getfixturevalue("s3")
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of a few hundred kilobytes."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 2000)
    return path


def test_what_is_put_is_there_whole(address: str, file: Path, tmp_path: Path) -> None:
    store = Store(address)
    assert store.names() == []
    store.put(file, "run/ckpt-000001/weights")
    store.write("run/dtype", b"float32")
    assert store.names() == ["run/ckpt-000001/weights", "run/dtype"]
    assert store.names("run/ckpt-000001") == ["run/ckpt-000001/weights"]
    assert store.names("run/ckpt-00000") == []  # a directory, no beginning of a name
    assert store.exists("run/dtype")
    assert not store.exists("run/type")
    assert store.read("run/dtype") == b"float32"
    assert store.sha256("run/ckpt-000001/weights") == hashlib.sha256(file.read_bytes()).hexdigest()
    store.get("run/ckpt-000001/weights", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == file.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".part")) == []


def test_a_full_disk_of_this_host_is_not_blamed_on_the_store(
    address: str, file: Path, tmp_path: Path
) -> None:
    store, cache = Store(address), HostCache(tmp_path / "cache", max_bytes=1_000_000)
    store.put(file, "weights")
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, bounds[1]))  # of a file here, as on a full disk
    try:
        with (
            pytest.raises(StoreError, match=r"^the cache .* cannot be written: .*UNSTABLE_STREAM_CACHE"),
            cache.fetched(address, lambda directory: False, lambda to: store.get("weights", to / "w")),
        ):
            raise AssertionError("it was fetched")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    assert list(cache.directory(address).iterdir()) == []


def test_a_place_here_that_cannot_be_written_or_read_is_named(
    address: str, file: Path, tmp_path: Path
) -> None:
    store = Store(address)
    store.put(file, "weights")
    with pytest.raises(ThisHostError, match=f"'{file}"):
        store.get("weights", file / "below-a-file")
    with pytest.raises(ThisHostError, match="nowhere"):
        store.put(tmp_path / "nowhere", "weights")


def test_what_is_not_there_is_said_to_be_so(address: str, tmp_path: Path) -> None:
    store = Store(address)
    assert store.read("nothing") is None
    assert store.sha256("nothing") is None
    assert not store.exists("some/thing")
    with pytest.raises(FileNotFoundError):
        store.get("nothing", tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    with pytest.raises(FileNotFoundError):
        store.copy("nothing", "second")
    store.remove("nothing")


def test_a_file_may_have_two_names(address: str) -> None:
    store = Store(address)
    store.write("a/optimizer.pt", b"state")
    store.copy("a/optimizer.pt", "a/optimizer.pt.of-fork")
    store.remove("a/optimizer.pt")
    assert store.names() == ["a/optimizer.pt.of-fork"]
    assert store.read("a/optimizer.pt.of-fork") == b"state"


def test_it_is_checked_without_a_trace(address: str) -> None:
    store = Store(address)
    store.check_writable()
    assert store.names() == []


def test_two_places_in_one_store_are_two(address: str) -> None:
    Store(f"{address}/a").write("file", b"a")
    Store(f"{address}/ab").write("file", b"ab")
    assert Store(f"{address}/a").names() == ["file"]
    assert Store(address).names() == ["a/file", "ab/file"]


@pytest.fixture
def gate(s3: str, s3_server_of_session: S3Server, monkeypatch: pytest.MonkeyPatch) -> "Callable[[], Gate]":
    """Puts a gate before the server, for the rest of the test."""

    def make() -> Gate:
        made = Gate(s3_server_of_session.port)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{made.port}")
        return made

    return make


@pytest.mark.parametrize("state", ["closed", "busy"])
def test_a_store_that_comes_back_was_only_slow(s3: str, gate: Callable[[], Gate], state: str) -> None:
    with gate() as before, capture_logs() as lines:
        store = Store(s3)
        store.write("file", b"content")
        before.close_now(state)
        found: list[bytes | None] = []
        reading = threading.Thread(target=lambda: found.append(store.read("file")))
        reading.start()
        deadline = time.monotonic() + 60
        while not (before.turned_away > 1 and store_wait_s() > 0):
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        before.state = "open"
        reading.join()
    assert found == [b"content"]
    assert store_wait_s() == 0
    waited = [line for line in lines if line["event"] == "waiting for the store"]
    assert waited
    assert waited[0]["store"] == s3
    assert "the store answers again" in [line["event"] for line in lines]


@pytest.mark.parametrize("size", [5, 8 << 20])  # less and more than a connection takes without being read
def test_a_write_to_a_store_that_falls_silent_is_made_again(
    s3: str, gate: Callable[[], Gate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A client asks a store whether it may send, or has sent a part: without a bound it waits for ever."""
    monkeypatch.setattr("unstable_stream.log.stores.store._SILENT_S", 1.0)
    monkeypatch.setattr("unstable_stream.log.stores.store._SLOWEST_BYTES_PER_S", 1 << 24)
    file = tmp_path / "file"
    file.write_bytes(bytes(size))
    with gate() as before, capture_logs() as lines:
        store = Store(s3)
        store.write("first", b"content")  # leaves a connection to be used again
        before.close_now("silent")
        for write in (lambda: store.put(file, "file"), lambda: store.write("small", b"content")):
            before.state = "silent"
            writing = threading.Thread(target=write, daemon=True)
            writing.start()
            deadline = time.monotonic() + 60
            while not store_wait_s():
                assert time.monotonic() < deadline, "it waits for an answer, and nobody knows"
                threading.Event().wait(0.01)
            before.state = "open"
            writing.join(60)
            assert not writing.is_alive()
        assert store.read("small") == b"content"
        assert store.sha256("file") == hashlib.sha256(bytes(size)).hexdigest()
    reasons = [line["reason"] for line in lines if line["event"] == "waiting for the store"]
    assert reasons
    assert all(reason.partition(": ")[2] for reason in reasons)


def test_nobody_waits_for_ever(s3: str, gate: Callable[[], Gate]) -> None:
    with gate() as before:
        before.close_now()
        with pytest.raises(StoreUnavailableError, match=f"{s3} could not be reached .* to read file"):
            Store(s3, patience_s=1).read("file")
    assert StoreUnavailableError.retriable


def test_a_wrong_key_is_refused_at_once_and_without_the_key(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another client than that of the other tests.
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{os.environ['AWS_ENDPOINT_URL']}/")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(StoreError, match="could not write file, permission denied") as caught:
        Store(s3).write("file", b"content")
    assert "wrong-secret" not in str(caught.value)


class _AnswerError(Exception):
    """An error as the clients of other stores raise it."""

    def __init__(self, status: object) -> None:
        super().__init__(f"status {status}")
        self.status = status


def test_what_passes_and_what_lasts() -> None:
    numbers = (OSError(5, "input or output"), OSError("no number"))
    passing = (ConnectionResetError(), TimeoutError(), *numbers, _AnswerError(503), _AnswerError(429))
    mistakes = (KeyError("a mistake of ours"), _AnswerError(404), _AnswerError(None))
    lasting = (FileNotFoundError(), PermissionError(), OSError(28, "no space"), *mistakes)
    assert [error for error in passing if not is_passing(error)] == []
    assert [error for error in lasting if is_passing(error)] == []
