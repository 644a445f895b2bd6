"""Which adapter is live and whose turn is next: fairness, bounds, failures, cancellation; no engine."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.inference.conftest import until
from tests.inference.tiny_model import build_adapter
from unstable_stream.errors import AdapterError, ConfigError, EngineError
from unstable_stream.inference.adapter_files import check_adapter_files, check_target_modules, weight_shapes
from unstable_stream.inference.adapter_slots import AdapterSlots
from unstable_stream.inference.engine import Adapter
from unstable_stream.log.stores.adapter_format import CONFIG_FILE, WEIGHTS_FILE

DEADLINE_S = 60.0
A, B, C, D = (Adapter(uid=name, path=f"/adapters/{name}") for name in "abcd")


@dataclass
class Memory:
    """Stands in for the engine's memory; records what it was asked and how much it held at most."""

    fails: set[str] = field(default_factory=set)
    impostors: set[str] = field(default_factory=set)
    proofs: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    held: dict[int, str] = field(default_factory=dict)
    peak: int = 0
    gate: asyncio.Event | None = None

    async def load(self, adapter: Adapter, number: int) -> None:
        self.loads.append(adapter.uid)
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        if adapter.uid in self.fails:
            raise EngineError(f"{adapter.uid} is broken")
        self.held[number] = adapter.uid
        self.peak = max(self.peak, len(self.held))

    async def prove(self, adapter: Adapter, number: int) -> None:
        self.proofs.append(adapter.uid)
        if adapter.uid in self.impostors:
            raise AdapterError(f"{adapter.uid} is another adapter")

    async def unload(self, number: int) -> None:
        await asyncio.sleep(0)
        del self.held[number]


def slots_over(memory: Memory, max_live: int, max_loaded: int | None = None) -> AdapterSlots:
    return AdapterSlots(
        max_live=max_live,
        max_loaded=max_loaded or max_live,
        load=memory.load,
        prove=memory.prove,
        unload=memory.unload,
    )


@dataclass
class Request:
    """A request that stays under way until told to finish."""

    task: "asyncio.Task[int]"
    entered: asyncio.Event
    finish: asyncio.Event


def start(slots: AdapterSlots, adapter: Adapter) -> Request:
    entered, finish = asyncio.Event(), asyncio.Event()

    async def hold() -> int:
        async with slots.hold(adapter) as number:
            entered.set()
            await finish.wait()
            return number

    return Request(asyncio.create_task(hold()), entered, finish)


async def end(*requests: Request) -> list[int]:
    for request in requests:
        request.finish.set()
    return await asyncio.gather(*(request.task for request in requests))


async def settle() -> None:
    """Let every ready task run until nothing more can change by itself."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_full_house_drains_before_the_next_adapter_goes_live() -> None:
    slots = slots_over(Memory(), max_live=2)
    first, second, third = start(slots, A), start(slots, B), start(slots, B)
    await until(lambda: third.entered.is_set())
    newcomer = start(slots, C)
    late = start(slots, A)
    steady = start(slots, B)
    await settle()
    # A has the fewest requests, so A drains: its late request waits behind C, B goes on.
    assert steady.entered.is_set()
    assert not newcomer.entered.is_set()
    assert not late.entered.is_set()
    assert slots.waiting == 2
    first.finish.set()
    await until(newcomer.entered.is_set)
    assert sorted(slots.live) == ["b", "c"]
    # Now C, with one request, drains for A.
    newcomer.finish.set()
    await until(late.entered.is_set)
    await end(second, third, late, steady)
    assert slots.waiting == 0


async def test_a_steady_stream_for_one_adapter_starves_no_other() -> None:
    slots = slots_over(Memory(), max_live=1)
    order: list[str] = []
    stop = asyncio.Event()

    async def stream(adapter: Adapter) -> None:
        while not stop.is_set():
            async with slots.hold(adapter):
                order.append(adapter.uid)
                await asyncio.sleep(0)

    # Four overlapping streams for A: it is never idle by itself.
    streams = [asyncio.create_task(stream(A)) for _ in range(4)]
    await until(lambda: len(order) > 20)
    streams += [asyncio.create_task(stream(adapter)) for adapter in (B, C, D)]
    await until(lambda: min(order.count(name) for name in "abcd") >= 10)
    stop.set()
    await asyncio.gather(*streams)


@pytest.mark.parametrize("max_live", [1, 2, 3])
async def test_live_and_loaded_adapters_stay_within_their_bounds(max_live: int) -> None:
    memory = Memory()
    slots = slots_over(memory, max_live=max_live, max_loaded=max_live + 1)
    under_way: dict[str, int] = {}
    most_live = 0

    async def request(adapter: Adapter, steps: int) -> None:
        nonlocal most_live
        async with slots.hold(adapter) as number:
            assert memory.held[number] == adapter.uid
            under_way[adapter.uid] = under_way.get(adapter.uid, 0) + 1
            for _ in range(steps):
                most_live = max(most_live, sum(count > 0 for count in under_way.values()))
                await asyncio.sleep(0)
                assert memory.held[number] == adapter.uid
            under_way[adapter.uid] -= 1

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(
            *(request((A, B, C, D)[(7 * index) % 4], steps=1 + index % 5) for index in range(200))
        )
    assert most_live == max_live
    assert memory.peak == max_live + 1


async def test_an_adapter_in_memory_is_not_loaded_again_and_is_proven_when_it_becomes_live() -> None:
    """It may have another place there. The numbers are unique to the adapters."""
    memory, numbers = Memory(), []
    slots = slots_over(memory, max_live=1, max_loaded=2)
    for adapter in (A, A, B, A, C, A, B):
        async with slots.hold(adapter) as number:
            numbers.append(number)
    assert numbers == [1, 1, 2, 1, 3, 1, 2]
    # C takes the room of B, the least recently live; then B that of C.
    assert memory.loads == ["a", "b", "c", "b"]
    assert memory.proofs == ["a", "b", "a", "c", "a", "b"]


async def test_the_same_uid_with_another_path_is_refused() -> None:
    slots = slots_over(Memory(), max_live=1)
    async with slots.hold(A):
        pass
    with pytest.raises(EngineError, match=r"'a' was /adapters/a and is now /elsewhere"):
        async with slots.hold(Adapter(uid="a", path="/elsewhere")):
            pass


async def test_a_failed_load_fails_those_who_wait_for_it_and_frees_the_slot() -> None:
    memory = Memory(fails={"a"})
    slots = slots_over(memory, max_live=1)
    broken = [start(slots, A) for _ in range(3)]
    sound = start(slots, B)
    results = await asyncio.gather(*(request.task for request in broken), return_exceptions=True)
    assert [str(result) for result in results] == ["a is broken"] * 3
    await until(sound.entered.is_set)
    assert await end(sound) == [2]
    # It may be mended on disk: the next request tries again.
    memory.fails.clear()
    async with slots.hold(A) as number:
        assert number == 1


async def test_cancelled_waiters_leave_the_queue_and_the_live_adapter_takes_requests_again() -> None:
    slots = slots_over(Memory(), max_live=1)
    running = start(slots, A)
    await until(running.entered.is_set)
    waiter = start(slots, B)
    late = start(slots, A)
    await settle()
    assert not late.entered.is_set()
    waiter.task.cancel()
    await until(late.entered.is_set)
    assert slots.waiting == 0
    await end(running, late)


async def test_a_request_cancelled_as_it_is_admitted_gives_its_slot_back() -> None:
    slots = slots_over(Memory(), max_live=1)
    async with slots.hold(A):
        waiter = start(slots, B)
        await settle()
    # B has been granted the slot by now, in this very turn of the loop, and has not run since.
    assert slots.live == ["b"]
    assert not waiter.entered.is_set()
    waiter.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter.task
    async with asyncio.timeout(DEADLINE_S), slots.hold(C):
        assert slots.live == ["c"]


async def test_cancelling_one_of_two_who_wait_for_a_load_leaves_the_load_alone() -> None:
    memory = Memory(gate=asyncio.Event())
    slots = slots_over(memory, max_live=1)
    one, two = start(slots, A), start(slots, A)
    await until(lambda: memory.loads == ["a"])
    one.task.cancel()
    await settle()
    assert memory.gate is not None
    memory.gate.set()
    await until(two.entered.is_set)
    assert await end(two) == [1]
    assert memory.loads == ["a"]


# -- the files ------------------------------------------------------------------------------------


def test_a_sound_adapter_passes(tiny_model: Path, adapters: list[Adapter]) -> None:
    shapes = weight_shapes(tiny_model)
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (128, 128)
    assert shapes["model.layers.1.mlp.down_proj.weight"] == (128, 256)
    for adapter in adapters:
        check_adapter_files(adapter, shapes, max_rank=8)


def cut_short(path: Path) -> None:
    weights = path / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:100])


def of_rank(config: dict[str, Any]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        file = path / CONFIG_FILE
        file.write_text(json.dumps(json.loads(file.read_text()) | config))

    return change


def narrowed(side: str) -> Callable[[Path], None]:
    """Cut one matrix of the adapter down to 64 features."""

    def change(path: Path) -> None:
        tensors: dict[str, torch.Tensor] = load_file(path / WEIGHTS_FILE)
        name = next(name for name in tensors if f"down_proj.lora_{side}" in name)
        tensors[name] = (tensors[name][:, :64] if side == "A" else tensors[name][:64]).contiguous()
        save_file(tensors, path / WEIGHTS_FILE)

    return change


def also_adapting(module: str) -> Callable[[Path], None]:
    """vLLM leaves these out of the log-probabilities of prompts (vLLM #51594)."""

    def change(path: Path) -> None:
        pair = {f"base_model.model.{module}.lora_{side}.weight": torch.ones(8, 8) for side in "AB"}
        save_file(load_file(path / WEIGHTS_FILE) | pair, path / WEIGHTS_FILE)

    return change


NARROW = r"64 features in .*lora_.*the model's .*down_proj' has (128|256)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, r"'ckpt-000009' at .*ckpt-000009 cannot be read.*adapter_config\.json"),
        (cut_short, "cut short"),
        (of_rank({"r": 16}), "rank 16, the engine takes up to 8; raise lora_rank"),
        (of_rank({"rank_pattern": {"q_proj": 12}}), "rank 12"),
        (narrowed("A"), NARROW),
        (narrowed("B"), NARROW),
        (also_adapting("lm_head"), "adapts 'lm_head', an output head or embedding, which no engine"),
        (also_adapting("model.embed_tokens"), "adapts 'model.embed_tokens', an output head or embedding"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    tiny_model: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    adapter = build_adapter(tiny_model, tmp_path / "ckpt-000009", seed=4)
    change(Path(adapter.path))
    with pytest.raises(EngineError, match=message):
        check_adapter_files(adapter, weight_shapes(tiny_model), max_rank=8)


def test_target_modules_that_the_model_lacks_are_named_with_those_it_has(tiny_model: Path) -> None:
    check_target_modules(tiny_model, ["q_proj", "layers.1.mlp.up_proj", "model.layers.0.self_attn.k_proj"])
    with pytest.raises(ConfigError) as caught:
        check_target_modules(tiny_model, ["q_proj", "c_attn", "proj"])
    assert str(caught.value) == (
        f"lora.target_modules names c_attn, proj, which {tiny_model} does not have: "
        "set lora.target_modules to some of its layers down_proj, gate_proj, k_proj, o_proj, q_proj, "
        "up_proj, v_proj"
    )


def test_target_modules_of_an_unreadable_or_unknown_model(tmp_path: Path) -> None:
    check_target_modules(tmp_path, ["q_proj"])  # nothing saved as safetensors
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ConfigError, match=r"cannot be read: .*download or save it again"):
        check_target_modules(tmp_path, ["q_proj"])


async def test_an_adapter_that_is_not_proven_is_unloaded() -> None:
    memory = Memory(impostors={"a"})
    slots = slots_over(memory, max_live=1)
    with pytest.raises(AdapterError, match="a is another adapter"):
        async with slots.hold(A):
            pass
    assert memory.held == {}
    async with slots.hold(B):
        pass
    assert memory.loads == ["a", "b"]
