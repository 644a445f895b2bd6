"""Fetch the adapters that an engine is asked for, where they are in a store and not in a directory.

Engines load files. An adapter at an address is fetched into the cache of the engine's host before the first
request for it, and kept there while requests use it. Its directory depends on the address alone, so that one
that was evicted and fetched again is the same adapter to the engine.

Of an engine that proves no adapters, each is said once to play unproven, after its file was compared.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from unstable_stream.errors import (
    AdapterError,
    CheckpointError,
    ConfigError,
    EngineError,
    StoreUnavailableError,
)
from unstable_stream.inference.adapter_proof import AdapterProver
from unstable_stream.inference.engine import (
    Adapter,
    AdapterResult,
    Completion,
    Engine,
    EngineStats,
    GenerationRequest,
    ProvesAdapters,
    ScoresCompletions,
    Tokens,
)
from unstable_stream.log.stores.address import is_address
from unstable_stream.log.stores.cache import HostCache
from unstable_stream.log.stores.checkpoint_files import opened_checkpoint
from unstable_stream.log.stores.store import store_wait_s, waiting_until

_KEPT_IDLE: Final = 8
"""Adapters without requests that stay locked in the cache, so that the next request need not look there."""
_AT_ONCE: Final = 2


@dataclass(eq=False)
class _Fetched:
    """An adapter that is fetched, or on its way."""

    opened: Future[tuple[ExitStack, Path]]
    """Its directory, and what keeps that in the cache."""
    in_flight: int = 0

    @property
    def failed(self) -> bool:
        """True if there is nothing to wait for."""
        return self.opened.done() and (self.opened.cancelled() or self.opened.exception() is not None)

    def let_go(self) -> None:
        """Let the cache have the directory, also one that is still on its way."""
        self.opened.add_done_callback(lambda _: None if self.failed else self.opened.result()[0].close())


class FetchingEngine:
    """An engine that takes adapters at addresses too; all else is left to the one given."""

    def __init__(self, engine: Engine, cache: HostCache | None = None) -> None:
        """``cache``: by default that of this host."""
        self.engine: Final = engine
        self._unproven = None if isinstance(engine, ProvesAdapters) else AdapterProver(dtype="")
        self._checked: set[str] = set()
        self._cache = cache
        self._fetched: OrderedDict[tuple[str, str | None], _Fetched] = OrderedDict()
        """By address and digest, the longest unused first."""
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch-adapter")
        self._closing = threading.Event()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return one completion.

        Raises what the engine raises, and:

        Raises:
            AdapterError: the adapter is not in the store, or another one than was recorded.
            StoreUnavailableError: the store was away for too long.
            StoreError: the store refuses, or the cache cannot be written.
        """
        if request.adapter is None:
            return await self.engine.generate(request)
        async with self._here(request.adapter) as adapter:
            return await self.engine.generate(replace(request, adapter=adapter))

    async def score(self, sequences: Sequence[Tokens], adapter: Adapter | None = None) -> list[list[float]]:
        """Return the log-probability of each token of each completion.

        Raises what :meth:`generate` raises, and :class:`EngineError` if the engine scores nothing.
        """
        if not isinstance(self.engine, ScoresCompletions):
            raise EngineError(f"{type(self.engine).__name__} scores no completions: it has no method score")
        if adapter is None:
            return await self.engine.score(sequences, adapter)
        async with self._here(adapter) as fetched:
            return await self.engine.score(sequences, fetched)

    def take_adapter_results(self) -> list[AdapterResult]:
        """Return what came of loading adapters since the last call."""
        if isinstance(self.engine, ProvesAdapters):
            return self.engine.take_adapter_results()
        return self._unproven.take() if self._unproven else []

    def stats(self) -> EngineStats:
        """Return the engine's counters, and how long this process has waited for a store."""
        return replace(self.engine.stats(), store_wait_s=store_wait_s())

    async def close(self) -> None:
        """Close the engine, and give up what is being fetched: threads that wait for a store end."""
        self._closing.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self.engine.close()
        for fetched in self._fetched.values():
            fetched.let_go()
        self._fetched.clear()

    @asynccontextmanager
    async def _here(self, adapter: Adapter) -> AsyncIterator[Adapter]:
        if not is_address(adapter.path):
            yield await self._known(adapter)
            return
        key = (adapter.path, adapter.sha256)
        fetched = self._fetched.get(key)
        if fetched is None or fetched.failed:  # also one that failed when nobody waited for it any more
            fetched = self._fetched[key] = self._fetch(adapter)
        self._fetched.move_to_end(key)
        fetched.in_flight += 1
        try:
            # Shielded: others may wait for the same fetch when this caller is cancelled.
            _, directory = await asyncio.shield(asyncio.wrap_future(fetched.opened))
            yield await self._known(replace(adapter, path=str(directory)))
        except (CheckpointError, ConfigError) as error:
            raise AdapterError(f"adapter {adapter.uid!r}: {error}") from error
        finally:
            fetched.in_flight -= 1
            if fetched.failed and self._fetched.get(key) is fetched:
                del self._fetched[key]
            self._let_go()

    async def _known(self, adapter: Adapter) -> Adapter:
        """Return an adapter whose file is here; if nobody proves it, compare its digest the first time."""
        if self._unproven is not None and adapter.uid not in self._checked:
            await asyncio.to_thread(self._unproven.check_file, adapter)
            self._checked.add(adapter.uid)
            self._unproven.without_probe(adapter)
        return adapter

    def _fetch(self, adapter: Adapter) -> _Fetched:
        def fetch() -> tuple[ExitStack, Path]:
            with waiting_until(self._closing), ExitStack() as held:
                opened = opened_checkpoint(adapter.path, adapter.sha256, cache=self._cache)
                directory = held.enter_context(opened)
                if self._closing.is_set():
                    raise StoreUnavailableError("given up: the engine has closed")
                return held.pop_all(), directory

        return _Fetched(self._threads.submit(fetch))

    def _let_go(self) -> None:
        idle = [
            key for key, fetched in self._fetched.items() if not fetched.in_flight and fetched.opened.done()
        ]
        for key in idle[: max(0, len(idle) - _KEPT_IDLE)]:
            self._fetched.pop(key).let_go()
