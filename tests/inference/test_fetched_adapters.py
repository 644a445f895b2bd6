"""An engine is given adapters that are in a store as directories of its host."""

import asyncio
import secrets
import threading
import time
from pathlib import Path

import pytest

from tests.log.stores.saved import put, save
from unstable_stream.errors import AdapterError, EngineError, StoreUnavailableError
from unstable_stream.inference.engine import (
    Adapter,
    AdapterResult,
    Completion,
    EngineStats,
    GenerationRequest,
    ProvesAdapters,
)
from unstable_stream.inference.fetched_adapters import FetchingEngine
from unstable_stream.log.stores import HostCache, Store
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE


class Recording:
    """Says which adapter each request came with, and whether its weights were there."""

    def __init__(self) -> None:
        self.given: list[Adapter | None] = []
        self.open = asyncio.Event()
        self.open.set()
        self.closed = False

    async def generate(self, request: GenerationRequest) -> Completion:
        self.given.append(request.adapter)
        await self.open.wait()
        if request.adapter is not None and not Path(request.adapter.path, WEIGHTS_FILE).is_file():
            raise EngineError(f"no weights at {request.adapter.path}")
        return Completion([5], [-1.0], "stop")

    def take_adapter_results(self) -> list[AdapterResult]:
        return [AdapterResult("ckpt-000001", "proven", None, 1)]

    def stats(self) -> EngineStats:
        return EngineStats(1, 2, 3.0, 4, 5)

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def cache(tmp_path: Path) -> HostCache:
    return HostCache(tmp_path / "cache", max_bytes=1_000_000)


def stored(tmp_path: Path, number: int = 1) -> Adapter:
    """An adapter in the store of this process."""
    uid = f"ckpt-{number:06d}"
    digest = save(tmp_path / f"{uid}-saved", weights=uid.encode())
    address = f"memory://{secrets.token_hex(6)}/{uid}"
    put(address, tmp_path / f"{uid}-saved")
    return Adapter(uid, address, digest)


async def test_an_address_becomes_a_directory_and_all_else_stays(tmp_path: Path, cache: HostCache) -> None:
    inner, adapter = Recording(), stored(tmp_path)
    engine = FetchingEngine(inner, cache)
    local = Adapter("ckpt-000009", str(tmp_path / "ckpt-000001-saved"))
    for each in (None, local, adapter, adapter):
        await engine.generate(GenerationRequest([1], adapter=each))
    directory = str(cache.directory(adapter.path))
    expected = Adapter(adapter.uid, directory, adapter.sha256)
    assert inner.given == [None, local, expected, expected]
    assert not Path(directory, "optimizer.pt").exists(), "an engine needs no optimizer state"
    assert isinstance(engine, ProvesAdapters)
    assert [result.result for result in engine.take_adapter_results()] == ["proven"]
    assert engine.stats() == EngineStats(1, 2, 3.0, 4, 5, store_wait_s=0.0)
    await engine.close()
    assert inner.closed


async def test_an_adapter_in_use_is_not_evicted_and_comes_back_to_the_same_place(
    tmp_path: Path, cache: HostCache
) -> None:
    inner, adapter = Recording(), stored(tmp_path)
    engine = FetchingEngine(inner, cache)
    inner.open.clear()
    asked = asyncio.ensure_future(engine.generate(GenerationRequest([1], adapter=adapter)))
    while not inner.given:
        await asyncio.sleep(0.01)
    cache.max_bytes = 0
    assert cache.evict() == []
    inner.open.set()
    await asked
    await engine.close()
    assert len(cache.evict()) == 1
    again = FetchingEngine(inner, cache)
    await again.generate(GenerationRequest([1], adapter=adapter))
    assert inner.given[0] == inner.given[1]
    await again.close()


async def test_of_many_adapters_only_a_few_stay_locked(tmp_path: Path, cache: HostCache) -> None:
    inner = Recording()
    engine = FetchingEngine(inner, cache)
    for number in range(1, 13):
        await engine.generate(GenerationRequest([1], adapter=stored(tmp_path, number)))
    cache.max_bytes = 0
    assert len(cache.evict()) == 4
    await engine.close()
    assert len(cache.evict()) == 8


async def test_weights_that_are_not_the_recorded_ones_play_no_game(tmp_path: Path, cache: HostCache) -> None:
    inner, adapter = Recording(), stored(tmp_path)
    Store(adapter.path).write(WEIGHTS_FILE, b"of somebody else")
    engine = FetchingEngine(inner, cache)
    for _ in range(2):
        with pytest.raises(AdapterError, match=r"'ckpt-000001'.*damaged in the store"):
            await engine.generate(GenerationRequest([1], adapter=adapter))
    assert not inner.given
    Store(adapter.path).write(WEIGHTS_FILE, b"ckpt-000001")
    await engine.generate(GenerationRequest([1], adapter=adapter))
    await engine.close()


async def test_requests_wait_for_one_fetch_and_survive_each_other(
    tmp_path: Path, cache: HostCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, adapter = Recording(), stored(tmp_path)
    engine = FetchingEngine(inner, cache)
    may_answer, fetched = threading.Event(), list[str]()
    get = Store.get

    def slow(self: Store, name: str, target: Path) -> None:
        fetched.append(name)
        assert may_answer.wait(60)
        get(self, name, target)

    monkeypatch.setattr(Store, "get", slow)
    asked = [
        asyncio.ensure_future(engine.generate(GenerationRequest([1], adapter=adapter))) for _ in range(4)
    ]
    while not fetched:
        await asyncio.sleep(0.01)
    asked[0].cancel()
    may_answer.set()
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert len(inner.given) == 3
    assert fetched.count(WEIGHTS_FILE) == 1
    await engine.close()


async def test_a_fetch_that_failed_when_nobody_waited_is_made_again(
    tmp_path: Path, cache: HostCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, adapter = FetchingEngine(Recording(), cache), stored(tmp_path)
    begun, may_fail = threading.Event(), threading.Event()
    names = Store.names

    def away(self: Store, directory: str = "") -> list[str]:
        begun.set()
        assert may_fail.wait(60)
        raise StoreUnavailableError("the store is away")

    monkeypatch.setattr(Store, "names", away)
    asked = asyncio.ensure_future(engine.generate(GenerationRequest([1], adapter=adapter)))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    (fetched,) = engine._fetched.values()
    may_fail.set()
    await asyncio.wait([fetched.directory])
    monkeypatch.setattr(Store, "names", names)
    await engine.generate(GenerationRequest([1], adapter=adapter))
    await engine.close()


async def test_a_store_that_stays_away_is_no_fault_of_the_game(
    tmp_path: Path, cache: HostCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ``EngineError``: a game that met it would be abandoned, and is played again instead."""
    engine, adapter = FetchingEngine(Recording(), cache), stored(tmp_path)

    def away(self: Store, directory: str = "") -> list[str]:
        raise StoreUnavailableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "names", away)
        with pytest.raises(StoreUnavailableError):
            await engine.generate(GenerationRequest([1], adapter=adapter))
    await engine.generate(GenerationRequest([1], adapter=adapter))
    await engine.close()


async def test_closing_ends_the_wait_for_a_store_that_is_away(
    tmp_path: Path, cache: HostCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, adapter = FetchingEngine(Recording(), cache), stored(tmp_path)
    begun = threading.Event()
    names = Store.names

    def away(self: Store, directory: str = "") -> list[str]:
        begun.set()

        def refuse() -> list[str]:
            raise ConnectionError("nobody is there")

        return self._call("list files", refuse)

    monkeypatch.setattr(Store, "names", away)
    asked = asyncio.ensure_future(engine.generate(GenerationRequest([1], adapter=adapter)))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    began = time.monotonic()
    await engine.close()
    engine._threads.shutdown(wait=True)  # as the interpreter does at its end
    assert time.monotonic() - began < 120  # the store's patience is 300 s
    with pytest.raises(StoreUnavailableError, match="given up"):
        await asked
    monkeypatch.setattr(Store, "names", names)


async def test_what_arrives_after_closing_is_not_held(
    tmp_path: Path, cache: HostCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, adapter = FetchingEngine(Recording(), cache), stored(tmp_path)
    begun, may_answer = threading.Event(), threading.Event()
    get = Store.get

    def slow(self: Store, name: str, target: Path) -> None:
        begun.set()
        assert may_answer.wait(60)
        get(self, name, target)

    monkeypatch.setattr(Store, "get", slow)
    asked = asyncio.ensure_future(engine.generate(GenerationRequest([1], adapter=adapter)))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    await engine.close()
    may_answer.set()
    with pytest.raises(StoreUnavailableError, match="given up"):
        await asked
    cache.max_bytes = 0
    assert len(cache.evict()) == 1, "nothing is locked"
