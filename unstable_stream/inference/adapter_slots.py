"""Decide which LoRA adapters are live in an engine that has room for a few.

A request holds its adapter's slot while it runs. Once an adapter without a slot is asked for, the
live adapter with the fewest requests stops taking new ones, drains and hands over. Its own later requests
queue like anyone else's, so every adapter gets its turn in the order of its first waiting request.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from unstable_stream.errors import AdapterError, EngineError
from unstable_stream.inference.engine import Adapter


@dataclass(slots=True, eq=False)
class _Resident:
    """A live adapter."""

    adapter: Adapter
    number: int
    loading: asyncio.Task[None]
    in_flight: int = 0
    draining: bool = False
    """``True`` if it takes no new requests, because another adapter waits for its slot."""


class AdapterSlots:
    """Lets requests wait, so that at most ``max_live`` adapters run at a time. For one event loop only."""

    def __init__(
        self,
        max_live: int,
        max_loaded: int,
        load: Callable[[Adapter, int], Awaitable[None]],
        prove: Callable[[Adapter, int], Awaitable[None]],
        unload: Callable[[int], Awaitable[None]],
    ) -> None:
        """Start with no adapter.

        Args:
            max_live: Adapters with requests under way at once.
            max_loaded: Adapters in memory, at least ``max_live``; the least recently live one makes room.
            load: Brings an adapter into memory under its number; raises ``EngineError`` if that fails.
            prove: Checks an adapter that is in memory, each time that it becomes live; raises ``EngineError``
                if it must not be used.
            unload: Takes the adapter of that number out of memory.
        """
        self._max_live = max_live
        self._max_loaded = max_loaded
        self._load = load
        self._prove = prove
        self._unload = unload
        self._known: dict[str, tuple[str, int]] = {}
        """By uid: path and number, never given to another adapter."""
        self._residents: OrderedDict[str, _Resident] = OrderedDict()
        """The longest live first."""
        self._loaded: OrderedDict[str, int] = OrderedDict()
        """Number by uid, the least recently live first."""
        self._waiting: OrderedDict[str, list[tuple[Adapter, asyncio.Future[_Resident]]]] = OrderedDict()
        """By uid, in the order of the first one waiting."""
        self._memory = asyncio.Lock()
        """Loading and unloading happen one at a time, so that ``max_loaded`` always holds."""

    @property
    def live(self) -> list[str]:
        """Uids that hold a slot."""
        return list(self._residents)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def hold(self, adapter: Adapter) -> AsyncIterator[int]:
        """Wait for the adapter to be live and keep it so; yields its number, from 1, unique to its uid.

        Raises ``EngineError``: the uid stood for another path before, or loading failed.
        """
        self._identify(adapter)
        resident = self._residents.get(adapter.uid)
        if resident is None or resident.draining:
            resident = await self._turn(adapter)
        else:
            resident.in_flight += 1
        try:
            # Shielded: others may wait for the same load when this caller is cancelled.
            await asyncio.shield(resident.loading)
            yield resident.number
        finally:
            self._release(resident)

    async def close(self) -> None:
        """Cancel all loads, and the requests that wait for them."""
        loads = [resident.loading for resident in self._residents.values()]
        for loading in loads:
            loading.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    def _identify(self, adapter: Adapter) -> int:
        path, number = self._known.setdefault(adapter.uid, (adapter.path, len(self._known) + 1))
        if path != adapter.path:
            raise EngineError(
                f"adapter {adapter.uid!r} was {path} and is now {adapter.path}; "
                "adapters are never reloaded in place: give each checkpoint a uid of its own"
            )
        return number

    async def _turn(self, adapter: Adapter) -> _Resident:
        future: asyncio.Future[_Resident] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(adapter.uid, []).append((adapter, future))
        self._arrange()
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._arrange()
            else:
                # Granted in the same turn of the loop in which the caller was cancelled.
                self._release(future.result())
            raise

    def _release(self, resident: _Resident) -> None:
        resident.in_flight -= 1
        self._arrange()

    def _arrange(self) -> None:
        """Fill free and idle slots from the queue, then choose who drains for those still waiting."""
        for uid, entries in list(self._waiting.items()):
            entries[:] = [entry for entry in entries if not entry[1].cancelled()]
            if not entries:
                del self._waiting[uid]
        for uid in list(self._waiting):
            if uid not in self._residents and not self._make_room():
                break
            self._admit(uid)
        absent = sum(uid not in self._residents for uid in self._waiting)
        # Whoever drains already goes on, so that a newcomer cannot put off the one that waits longest.
        by_cost = sorted(self._residents.values(), key=lambda live: (not live.draining, live.in_flight))
        for rank, resident in enumerate(by_cost):
            resident.draining = rank < absent
        for uid in list(self._waiting):
            if uid in self._residents and not self._residents[uid].draining:
                self._admit(uid)

    def _make_room(self) -> bool:
        if len(self._residents) < self._max_live:
            return True
        for uid, resident in self._residents.items():
            if resident.in_flight == 0 and resident.loading.done():
                del self._residents[uid]
                return True
        return False

    def _admit(self, uid: str) -> None:
        """Make the adapter live, if it is not, and let all requests through that wait for it."""
        entries = self._waiting.pop(uid)
        resident = self._residents.get(uid)
        if resident is None:
            adapter = entries[0][0]
            loading = asyncio.get_running_loop().create_task(self._bring(adapter))
            resident = self._residents[uid] = _Resident(adapter, self._identify(adapter), loading)
            loading.add_done_callback(lambda task: self._loading_done(uid, task))
        resident.draining = False
        for _, future in entries:
            resident.in_flight += 1
            future.set_result(resident)

    def _loading_done(self, uid: str, loading: "asyncio.Task[None]") -> None:
        if loading.cancelled() or loading.exception() is not None:
            resident = self._residents.get(uid)
            if resident is not None and resident.loading is loading:
                del self._residents[uid]
        self._arrange()

    async def _bring(self, adapter: Adapter) -> None:
        async with self._memory:
            if adapter.uid not in self._loaded:
                idle = [uid for uid in self._loaded if uid not in self._residents]
                while idle and len(self._loaded) >= self._max_loaded:
                    await self._unload(self._loaded.pop(idle.pop(0)))
                number = self._identify(adapter)
                await self._load(adapter, number)
                self._loaded[adapter.uid] = number
            self._loaded.move_to_end(adapter.uid)
            try:
                await self._prove(adapter, self._loaded[adapter.uid])
            except AdapterError:
                await self._unload(self._loaded.pop(adapter.uid))
                raise
