"""Place the learner and the engines of a run: a pure function of the configuration and the machines.

Engine and learner share a GPU if there is only one. Each is given a part of it for good: a fraction in Ray's
accounts and a share of the memory that it may not exceed. The alternative, to let the engine sleep while the
learner trains, would save memory but make them wait for each other; here games go on during an update.

With more GPUs the learner has one of its own and the engines spread over the rest and over the machines, so
that the loss of one machine costs the fewest of them; the GPUs of one engine, and those of all learners, are
on one machine. What the configuration says always holds; what cannot be placed is refused with the key to
change.

What computes on CPUs spreads over the machines by their cores.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from unstable_stream.errors import ConfigError
from unstable_stream.runs.config import EngineExtensionConfig, RunConfig, VllmEngineConfig

_ALONE: Final = 0.85
"""Share of a GPU's memory that vLLM takes if it has the GPU for itself."""
_USABLE: Final = 0.9
"""The part of a shared GPU's memory that is given away: contexts and CUDA graphs take some besides."""
_CONTEXTS: Final = 0.05
"""The part that stays free where the configuration says how much the engines take."""
_LEAST: Final = 0.1
"""The least that a learner is left."""


class Machine(msgspec.Struct, frozen=True):
    """The resources of one machine."""

    gpus: int = 0
    gpu_bytes: int | None = None
    """Memory of each GPU; ``None``: not known."""
    cpus: int = 1
    """0: of several machines, nothing computes on this one's CPU."""
    memory_bytes: int | None = None
    """Host memory that is free; ``None``: not known."""
    node: str = ""
    """Ray's id of the machine; empty: this machine, which Ray may not know yet."""
    host: str = ""
    """The name of the machine, if it is one of several."""


class Share(msgspec.Struct, frozen=True):
    """The part of the machines that the learner or one engine computes on."""

    service: str
    """``learner``, ``engine 0``, …"""
    num_gpus: float = 0.0
    """A whole number, or a fraction of one GPU; 0: it computes on the CPU."""
    memory_fraction: float | None = None
    """The most of each of its GPUs' memory that it takes; ``None``: no bound."""
    kv_cache_gb: float | None = None
    """Size of vLLM's key-value cache in GiB; ``None``: vLLM measures what is left."""
    machine: int = 0
    gpus: tuple[int, ...] = ()
    """GPUs of that machine, as planned; Ray may choose others that are equal."""


class Placement(msgspec.Struct, frozen=True):
    """The places of all parts of a run."""

    learner: Share
    engines: tuple[Share, ...]
    machines: tuple[Machine, ...]
    opponents: tuple[Share, ...] = ()
    """Those of other models that are opponents, in the order of ``RunConfig.opponent_models``."""
    spread: bool = False
    """True if what has whole GPUs spreads over the machines; false also where it fits only if packed."""

    @property
    def shares(self) -> tuple[Share, ...]:
        """All shares: the learner's, and those of the engines and opponents."""
        return (self.learner, *self.engines, *self.opponents)

    @property
    def uses_gpus(self) -> bool:
        """True if any part computes on a GPU."""
        return any(share.num_gpus > 0 for share in self.shares)

    def neighbours(self, share: Share) -> tuple[Share, ...]:
        """The others on the same GPUs."""
        return tuple(
            other
            for other in self.shares
            if other is not share and other.machine == share.machine and set(other.gpus) & set(share.gpus)
        )

    @property
    def idle_gpus(self) -> int:
        """GPUs that nobody uses."""
        used = {(share.machine, gpu) for share in self.shares for gpu in share.gpus}
        return sum(machine.gpus for machine in self.machines) - len(used)

    def describe(self) -> list[str]:
        """Return a line of text per part, and one about GPUs that stay idle."""
        lines = [f"{share.service}: {self.where(share)}" for share in self.shares]
        if self.uses_gpus and self.idle_gpus:
            idle = self.idle_gpus
            lines.append(
                f"{idle} GPU{'s' * (idle > 1)} idle: collector.num_actors sets the number of engines"
            )
        return lines

    def where(self, share: Share) -> str:
        """Return in words where one part computes."""
        host = ""
        if len(self.machines) > 1:
            host = f" of {self.machines[share.machine].host or f'machine {share.machine}'}"
        if not share.gpus:
            return f"on the CPU{host}"
        where = f"on GPU {' and '.join(map(str, share.gpus))}{host}"
        if share.memory_fraction is not None:
            where += f", {share.memory_fraction:.0%} of its memory"
        others = [other.service for other in self.neighbours(share)]
        return f"{where}, shared with {', '.join(others)}" if others else where


def engine_count(config: RunConfig) -> int:
    """Return the number of engines, or the least of a range; in one process there is one."""
    return 1 if config.backend == "inline" else config.collector.fewest_engines


def place(config: RunConfig, machines: Sequence[Machine], *, learner_bytes: int | None = None) -> Placement:
    """Give the learner, each engine, and each other model that is an opponent, its place.

    Args:
        config: explicit numbers of GPUs and memory shares in it are kept.
        machines: what there is; with ``backend="inline"`` the first GPU of the first one is used.
        learner_bytes: the memory that the learner is expected to need on a GPU it shares; ``None``: half.

    Of a range of engines there are as many as have a whole GPU each, or a machine where there are no GPUs.

    Raises:
        ConfigError: it cannot be placed; the message names the keys to change.
    """
    wanted = config.collector.num_actors
    if isinstance(wanted, int) or config.backend == "inline":
        return _place(config, machines, learner_bytes)
    if not any(machine.gpus for machine in machines):
        computing = sum(machine.cpus > 0 for machine in machines)
        return _place(
            _with_engines(config, min(wanted.max, max(wanted.min, computing))), machines, learner_bytes
        )
    for count in range(wanted.max, wanted.min, -1):
        try:
            plan = _place(_with_engines(config, count), machines, learner_bytes)
        except ConfigError:
            continue
        if plan.engines[0].num_gpus >= 1 or config.engine.num_gpus is not None:
            return plan
    return _place(_with_engines(config, wanted.min), machines, learner_bytes)


def _with_engines(config: RunConfig, count: int) -> RunConfig:
    return config.model_copy(update={"collector": config.collector.model_copy(update={"num_actors": count})})


def _place(config: RunConfig, machines: Sequence[Machine], learner_bytes: int | None) -> Placement:
    if config.backend == "inline":
        machines = [msgspec.structs.replace(machines[0], gpus=min(1, machines[0].gpus))]
    names = ["learner", *(f"engine {number}" for number in range(engine_count(config)))]
    count = len(names)
    others = list(config.opponent_models.values())
    names += [f"opponent {opponent.name}" for opponent in others]
    tensor_parallel = _tensor_parallel(config)
    if not any(machine.gpus for machine in machines):
        if tensor_parallel > 1:
            raise ConfigError(
                f"engine.tensor_parallel_size={tensor_parallel} splits a model over GPUs, and there is none: "
                "leave it at 1"
            )
        first, *rest = _spread(machines, [Share(name) for name in names])
        return Placement(first, tuple(rest[: count - 1]), tuple(machines), tuple(rest[count - 1 :]))
    for learner in _learner_choices(config):
        for engine in _engine_choices(config, learner):
            wanted = [learner, *(engine for _ in range(count - 1)), *(other.num_gpus for other in others)]
            whole = len(machines) > 1 and all(number == 0 or number >= 1 for number in wanted)
            spread = _fit(machines, wanted, spread=True) if whole else None
            found = spread or _fit(machines, wanted)
            if found is not None:
                shares = [
                    Share(name, num_gpus, machine=machine, gpus=gpus)
                    for name, num_gpus, (machine, gpus) in zip(names, wanted, found, strict=True)
                ]
                shares = _spread(machines, shares)
                opponents = [_opponent_share(share) for share in shares[count:]]
                plan = Placement(
                    shares[0],
                    tuple(shares[1:count]),
                    tuple(machines),
                    tuple(opponents),
                    spread=spread is not None,
                )
                return _with_memory(config, plan, learner_bytes)
    raise ConfigError(_refusal(config, machines))


def _opponent_share(share: Share) -> Share:
    """Bound the memory of an opponent that shares a GPU by its part of it."""
    part = share.num_gpus
    return msgspec.structs.replace(share, memory_fraction=round(_USABLE * part, 3)) if 0 < part < 1 else share


def _spread(machines: Sequence[Machine], shares: Sequence[Share]) -> list[Share]:
    """Give each part that computes on a CPU the machine with the fewest of them for its cores."""
    parts = {number: 0 for number, machine in enumerate(machines) if machine.cpus} or {0: 0}
    spread = []
    for share in shares:
        if share.num_gpus == 0:
            least = min(parts, key=lambda number: (parts[number] + 1) / max(machines[number].cpus, 1))
            share = msgspec.structs.replace(share, machine=least)
            parts[least] += 1
        spread.append(share)
    return spread


def _tensor_parallel(config: RunConfig) -> int:
    engine = config.engine
    return engine.tensor_parallel_size if isinstance(engine, VllmEngineConfig) else 1


def _learner_choices(config: RunConfig) -> Iterable[float]:
    given, count = config.learner.num_gpus, config.learner.num_learners
    if count > 1:
        return (float(count) if given is None else count * given,)
    return (1.0, 0.5) if given is None else (given,)


def _engine_choices(config: RunConfig, learner: float) -> Iterable[float]:
    """Return what an engine may ask for, the best first; engines split over several GPUs share none."""
    given = config.engine.num_gpus
    if given is not None:
        return (given,)
    if isinstance(config.engine, EngineExtensionConfig):
        return (0.0,)
    parts = _tensor_parallel(config)
    if parts > 1:
        return (float(parts),)
    room = 1.0 - learner if 0 < learner < 1 else 1.0
    # Rounded down to what Ray counts in, so that the parts of one GPU never exceed it.
    return [1.0, *(math.floor(10_000 * room / part) / 10_000 for part in range(1, engine_count(config) + 1))]


def _fit(
    machines: Sequence[Machine], wanted: Sequence[float], *, spread: bool = False
) -> list[tuple[int, tuple[int, ...]]] | None:
    """Return machine and GPUs for each wanted number of GPUs; ``None``: they do not fit.

    The largest are placed first, each on the machine with the least room that has enough, or, to ``spread``
    them, with the most.
    """
    free = [[1.0] * machine.gpus for machine in machines]
    found: list[tuple[int, tuple[int, ...]]] = [(0, ())] * len(wanted)
    for index in sorted(range(len(wanted)), key=lambda index: -wanted[index]):
        number = wanted[index]
        if number == 0:
            continue
        needs = math.ceil(number)
        least = 1.0 if number >= 1 else number
        places = [
            (sum(room), machine, [gpu for gpu, left in enumerate(room) if left >= least - 1e-9])
            for machine, room in enumerate(free)
        ]
        fitting = [place for place in places if len(place[2]) >= needs]
        if not fitting:
            return None
        _, machine, gpus = min(fitting, key=lambda place: (-place[0] if spread else place[0], place[1]))
        # Of GPUs with room the one with the most of it, so that fractions spread.
        chosen = sorted(sorted(gpus, key=lambda gpu: -free[machine][gpu])[:needs])
        for gpu in chosen:
            free[machine][gpu] -= least
        found[index] = (machine, tuple(chosen))
    return found


def _with_memory(config: RunConfig, plan: Placement, learner_bytes: int | None) -> Placement:
    """Divide the memory of shared GPUs. Ray may exchange equal engines, so all get what the least gets.

    A bound holds for a process, so there is none if learner and engine are in one. vLLM computes
    in a process of its own.
    """
    if config.backend == "inline" and not isinstance(config.engine, VllmEngineConfig):
        return plan
    learner, engine = plan.learner.num_gpus, plan.engines[0].num_gpus
    given = config.engine.gpu_memory_utilization if isinstance(config.engine, VllmEngineConfig) else None
    shared = 0 < learner < 1 and 0 < engine < 1
    for_learner: float | None = None
    fraction = _ALONE if engine >= 1 else _USABLE * engine
    if shared:
        beside = math.floor((1.0 - learner) / engine + 1e-3)
        for_learner = _learner_fraction(plan.machines[plan.learner.machine].gpu_bytes, learner_bytes)
        fraction = (_USABLE - for_learner) / beside
        if given is not None:
            for_learner = 1.0 - _CONTEXTS - given * beside
            if for_learner < _LEAST:
                raise ConfigError(
                    f"engine.gpu_memory_utilization={given:g} x {beside} on the learner's GPU leaves the "
                    f"learner {max(0.0, for_learner):.0%} of its memory: set it to at most "
                    f"{(1.0 - _CONTEXTS - _LEAST) / beside:.2f}, or leave it out"
                )
    own = None if engine == 0 else given or math.floor(fraction * 1000 + 1e-6) / 1000
    return Placement(
        msgspec.structs.replace(plan.learner, memory_fraction=for_learner and round(for_learner, 3)),
        tuple(msgspec.structs.replace(each, memory_fraction=own) for each in plan.engines),
        plan.machines,
        plan.opponents,
        plan.spread,
    )


def _learner_fraction(gpu_bytes: int | None, learner_bytes: int | None) -> float:
    """Half of what is given away, or what the learner is expected to need, with a quarter to spare."""
    if gpu_bytes is None or learner_bytes is None:
        return _USABLE / 2
    return min(0.65, max(0.25, math.ceil(20 * 1.25 * learner_bytes / gpu_bytes) / 20))


def _refusal(config: RunConfig, machines: Sequence[Machine]) -> str:
    engine = config.engine
    gpus = sum(machine.gpus for machine in machines)
    largest = max(machine.gpus for machine in machines)
    count, parts = engine_count(config), _tensor_parallel(config)
    there = f"there {'is 1 GPU' if gpus == 1 else f'are {gpus} GPUs'}"
    if parts > largest:
        at_most = "" if len(machines) == 1 else f", at most {largest} on one machine"
        return (
            f"engine.tensor_parallel_size={parts}, and {there}{at_most}: lower it; a model that needs the "
            "memory of more GPUs than a machine has cannot be placed"
        )
    learner, learners = config.learner.num_gpus, config.learner.num_learners
    if learners > largest and learner != 0:
        at_most = "" if len(machines) == 1 else f", at most {largest} on one machine"
        return (
            f"learner.num_learners={learners} need a GPU each on one machine, and {there}{at_most}: set it "
            "lower, or learner.num_gpus=0 (they then train on the CPU)"
        )
    numbers = {
        "collector.num_actors": count,
        "learner.num_learners": learners,
        "engine.tensor_parallel_size": parts,
        "engine.num_gpus": engine.num_gpus,
        "learner.num_gpus": learner,
    }
    asked = [f"{key}={number:g}" for key, number in numbers.items() if number not in (None, 1)]
    asked += [f"opponent {each.name}" for each in config.opponent_models.values() if each.num_gpus]
    return (
        f"{there}, too few for a learner and an engine with {', '.join(asked) or 'a GPU each'}: set these "
        "numbers lower, leave num_gpus out, and the GPUs are divided, or set learner.num_gpus=0, and it "
        "trains on the CPU"
    )
