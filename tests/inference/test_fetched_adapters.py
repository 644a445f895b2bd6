"""An engine is given adapters that are in a store as directories of its host."""

import asyncio
import secrets
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.inference.conftest import until
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
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE
from unstable_stream.log.stores.cache import HostCache
from unstable_stream.log.stores.store import Store


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


@pytest.fixture
def inner() -> Recording:
    return Recording()


@pytest.fixture
def engine(inner: Recording, cache: HostCache) -> FetchingEngine:
    return FetchingEngine(inner, cache)


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    return stored(tmp_path)


def ask(engine: FetchingEngine, adapter: Adapter | None) -> "asyncio.Task[Completion]":
    return asyncio.create_task(engine.generate(GenerationRequest([1], adapter=adapter)))


class Gate:
    """Stands in for a method of the store: it is open when told so, and then does what it stands for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, failure: Exception | None = None) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.names: list[object] = []
        method = getattr(Store, name)

        def gated(store: Store, *arguments: Any) -> Any:
            self.names += arguments[:1]
            self.begun.set()
            assert self.open.wait(60)
            if failure is not None:
                raise failure
            return method(store, *arguments)

        monkeypatch.setattr(Store, name, gated)


async def test_an_address_becomes_a_directory_and_all_else_stays(
    tmp_path: Path, cache: HostCache, inner: Recording, engine: FetchingEngine, adapter: Adapter
) -> None:
    local = Adapter("ckpt-000009", str(tmp_path / "ckpt-000001-saved"))
    for each in (None, local, adapter, adapter):
        await ask(engine, each)
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
    cache: HostCache, inner: Recording, engine: FetchingEngine, adapter: Adapter
) -> None:
    inner.open.clear()
    asked = ask(engine, adapter)
    await until(lambda: inner.given)
    cache.max_bytes = 0
    assert cache.evict() == 0
    inner.open.set()
    await asked
    await engine.close()
    assert cache.evict() == 1
    again = FetchingEngine(inner, cache)
    await ask(again, adapter)
    assert inner.given[0] == inner.given[1]
    await again.close()


async def test_of_many_adapters_only_a_few_stay_locked(
    tmp_path: Path, cache: HostCache, engine: FetchingEngine
) -> None:
    for number in range(1, 13):
        await ask(engine, stored(tmp_path, number))
    cache.max_bytes = 0
    assert cache.evict() == 4
    await engine.close()
    assert cache.evict() == 8


async def test_weights_that_are_not_the_recorded_ones_play_no_game(
    inner: Recording, engine: FetchingEngine, adapter: Adapter
) -> None:
    Store(adapter.path).write(WEIGHTS_FILE, b"of somebody else")
    for _ in range(2):
        with pytest.raises(AdapterError, match=r"'ckpt-000001'.*damaged in the store"):
            await ask(engine, adapter)
    assert not inner.given
    Store(adapter.path).write(WEIGHTS_FILE, b"ckpt-000001")
    await ask(engine, adapter)
    await engine.close()


async def test_requests_wait_for_one_fetch_and_survive_each_other(
    inner: Recording, engine: FetchingEngine, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "get")
    asked = [ask(engine, adapter) for _ in range(4)]
    await until(gate.begun.is_set)
    asked[0].cancel()
    gate.open.set()
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert len(inner.given) == 3
    assert gate.names.count(WEIGHTS_FILE) == 1
    await engine.close()


async def test_a_fetch_that_failed_when_nobody_waited_is_made_again(
    engine: FetchingEngine, adapter: Adapter
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        gate = Gate(patch, "names", StoreUnavailableError("the store is away"))
        asked = ask(engine, adapter)
        await until(gate.begun.is_set)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        (fetched,) = engine._fetched.values()
        gate.open.set()
        await until(fetched.opened.done)
    await ask(engine, adapter)
    await engine.close()


async def test_a_store_that_stays_away_is_no_fault_of_the_game(
    engine: FetchingEngine, adapter: Adapter
) -> None:
    """No ``EngineError``: a game that met it would be abandoned, and is played again instead."""
    with pytest.MonkeyPatch.context() as patch:
        Gate(patch, "names", StoreUnavailableError("the store is away")).open.set()
        with pytest.raises(StoreUnavailableError):
            await ask(engine, adapter)
    await ask(engine, adapter)
    await engine.close()


async def test_closing_ends_the_wait_for_a_store_that_is_away(
    engine: FetchingEngine, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def away(self: Store, directory: str = "") -> list[str]:
        begun.set()

        def refuse() -> list[str]:
            raise ConnectionError("nobody is there")

        return self._call("list files", refuse)

    monkeypatch.setattr(Store, "names", away)
    asked = ask(engine, adapter)
    await until(begun.is_set)
    began = time.monotonic()
    await engine.close()
    engine._threads.shutdown(wait=True)  # as the interpreter does at its end
    assert time.monotonic() - began < 120  # the store's patience is 300 s
    with pytest.raises(StoreUnavailableError, match="given up"):
        await asked


async def test_what_arrives_after_closing_is_not_held(
    cache: HostCache, engine: FetchingEngine, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "get")
    asked = ask(engine, adapter)
    await until(gate.begun.is_set)
    await engine.close()
    gate.open.set()
    with pytest.raises(StoreUnavailableError, match="given up"):
        await asked
    cache.max_bytes = 0
    assert cache.evict() == 1, "nothing is locked"
