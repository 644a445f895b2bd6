"""Where the parts of a run compute: (configuration, machines) -> placement, by table."""

from collections import defaultdict
from typing import Any

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.placement import Machine, Placement, place

GIB = 2**30


def config(
    engines: int | dict[str, int] = 1,
    *,
    engine: str = "vllm",
    learner: dict[str, Any] | None = None,
    backend: str = "ray",
    **keys: Any,
) -> RunConfig:
    values = {"model": "tiny-player", "backend": backend, "train_envs": [{"env_id": "TicTacToe-v0-train"}]}
    sections = {"collector": {"num_actors": engines}, "engine": {"type": engine, **keys}}
    return parse_config({**values, **sections, "learner": learner or {}})


def machines(*gpus: int, memory: int | None = None) -> list[Machine]:
    return [Machine(gpus=count, gpu_bytes=memory) for count in gpus]


def asked(plan: Placement) -> tuple[float, list[float]]:
    return plan.learner.num_gpus, [engine.num_gpus for engine in plan.engines]


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
@pytest.mark.parametrize(
    ("gpus", "engines", "learner", "each"),
    [
        ((0,), 1, 0.0, 0.0),
        ((0, 0), 3, 0.0, 0.0),
        ((1,), 1, 0.5, 0.5),
        ((1,), 2, 0.5, 0.25),
        ((2,), 1, 1.0, 1.0),
        ((2,), 2, 1.0, 0.5),
        ((2,), 4, 1.0, 0.25),
        ((4,), 3, 1.0, 1.0),
        ((4,), 6, 1.0, 0.5),
        ((8,), 7, 1.0, 1.0),
        ((8,), 1, 1.0, 1.0),
        ((1, 1), 1, 1.0, 1.0),
        ((1, 1, 1), 3, 1.0, 0.5),
        ((4, 4), 7, 1.0, 1.0),
    ],
)
def test_engine_and_learner_share_one_gpu_and_spread_over_more(
    gpus: tuple[int, ...], engines: int, learner: float, each: float, engine: str
) -> None:
    plan = place(config(engines, engine=engine), machines(*gpus))
    assert asked(plan) == (learner, [each] * engines)
    _check_that_no_gpu_is_given_away_twice(plan)


@pytest.mark.parametrize(
    ("gpus", "engines", "parts"),
    [((3,), 1, 2), ((4,), 1, 2), ((8,), 3, 2), ((8,), 1, 4), ((4, 1), 1, 4), ((2, 2, 2), 2, 2)],
)
def test_an_engine_split_over_gpus_has_them_for_itself_on_one_machine(
    gpus: tuple[int, ...], engines: int, parts: int
) -> None:
    plan = place(config(engines, tensor_parallel_size=parts), machines(*gpus))
    assert asked(plan) == (1.0, [float(parts)] * engines)
    assert all(len(share.gpus) == parts and not plan.neighbours(share) for share in plan.engines)
    _check_that_no_gpu_is_given_away_twice(plan)


@pytest.mark.parametrize(
    ("gpus", "engines", "parts", "learners", "on"),
    [
        # Of the learner, then of each engine.
        ((4, 4), 3, 1, 1, [0, 1, 0, 1]),
        ((2, 2, 2), 2, 1, 1, [0, 1, 2]),
        ((4, 4, 4), 2, 2, 1, [2, 0, 1]),
        ((4, 4), 2, 2, 2, [0, 1, 0]),
        # Only packed they all fit: were the learners on the first machine, it would have no room for two.
        ((4, 3), 2, 2, 3, [1, 0, 0]),
        ((8,), 3, 1, 1, [0, 0, 0, 0]),
    ],
)
def test_engines_spread_over_machines_where_all_fit(
    gpus: tuple[int, ...], engines: int, parts: int, learners: int, on: list[int]
) -> None:
    asked_for = config(engines, tensor_parallel_size=parts, learner={"num_learners": learners})
    plan = place(asked_for, machines(*gpus))
    assert [share.machine for share in plan.shares] == on
    assert plan.spread == (len(gpus) > 1 and gpus != (4, 3))
    _check_that_no_gpu_is_given_away_twice(plan)


@pytest.mark.parametrize(
    ("gpus", "given", "fix"),
    [
        ((0,), config(tensor_parallel_size=2), "leave it at 1"),
        ((1,), config(tensor_parallel_size=2), "there is 1 GPU: lower it"),
        ((2,), config(tensor_parallel_size=2), r"learner\.num_gpus=0"),
        ((1, 1), config(tensor_parallel_size=2), "at most 1 on one machine: lower it"),
        ((4,), config(2, tensor_parallel_size=2), r"collector\.num_actors=2"),
        ((1,), config(num_gpus=1.0), "leave num_gpus out"),
        ((2,), config(3, num_gpus=0.9), "leave num_gpus out"),
        ((1,), config(gpu_memory_utilization=0.9), "at most 0.85"),
        ((4,), config({"min": 3, "max": 8}, tensor_parallel_size=2), r"collector\.num_actors=3"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_key_to_change(
    gpus: tuple[int, ...], given: RunConfig, fix: str
) -> None:
    with pytest.raises(ConfigError, match=fix) as refused:
        place(given, machines(*gpus))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("gpus", "given", "expected"),
    [
        ((1,), config(num_gpus=0.3), (0.5, [0.3])),
        ((1,), config(learner={"num_gpus": 0.2}), (0.2, [0.8])),
        ((1,), config(learner={"num_gpus": 0.0}), (0.0, [1.0])),
        ((1,), config(engine="transformers", num_gpus=0.0), (1.0, [0.0])),
        ((2,), config(2, num_gpus=0.5), (1.0, [0.5, 0.5])),
        ((0,), config(num_gpus=1.0, learner={"num_gpus": 1.0}), (0.0, [0.0])),
        ((2,), config(tensor_parallel_size=2, learner={"num_gpus": 0.0}), (0.0, [2.0])),
        # An engine of one's own gets a GPU only if it asks for one.
        ((2,), config(engine="somewhere:Engine"), (1.0, [0.0])),
        ((1,), config(engine="somewhere:Engine", num_gpus=0.5), (0.5, [0.5])),
    ],
)
def test_what_the_configuration_says_holds(
    gpus: tuple[int, ...], given: RunConfig, expected: tuple[float, list[float]]
) -> None:
    assert asked(place(given, machines(*gpus))) == expected


def test_one_process_uses_one_gpu_and_one_engine() -> None:
    plan = place(config(3, backend="inline"), machines(4))
    assert asked(plan) == (0.5, [0.5])
    assert plan.neighbours(plan.learner) == plan.engines


@pytest.mark.parametrize(
    ("gpus", "given", "learner", "each"),
    [
        ((1,), config(), 0.45, 0.45),
        ((1,), config(2), 0.45, 0.225),
        ((2,), config(), None, 0.85),
        ((2,), config(3), None, 0.3),
        ((1,), config(gpu_memory_utilization=0.6), 0.35, 0.6),
        ((2,), config(gpu_memory_utilization=0.95), None, 0.95),
        # Parts of one process do not bound each other; vLLM computes in one of its own.
        ((1,), config(engine="transformers", backend="inline"), None, None),
        ((1,), config(backend="inline"), 0.45, 0.45),
    ],
)
def test_the_memory_of_a_shared_gpu_is_divided(
    gpus: tuple[int, ...], given: RunConfig, learner: float | None, each: float | None
) -> None:
    plan = place(given, machines(*gpus))
    assert plan.learner.memory_fraction == pytest.approx(learner)
    assert all(engine.memory_fraction == pytest.approx(each, abs=2e-3) for engine in plan.engines)


@pytest.mark.parametrize(("needs", "learner"), [(1 * GIB, 0.25), (8 * GIB, 0.45), (20 * GIB, 0.65)])
def test_a_learner_that_needs_more_of_a_shared_gpu_gets_more(needs: int, learner: float) -> None:
    plan = place(config(), machines(1, memory=24 * GIB), learner_bytes=needs)
    assert plan.learner.memory_fraction == learner
    assert plan.engines[0].memory_fraction == pytest.approx(0.9 - learner)


def test_a_plan_says_in_words_who_computes_where() -> None:
    assert place(config(), machines(0)).describe() == ["learner: on the CPU", "engine 0: on the CPU"]
    of_hosts = ["learner: on the CPU of host-0", "engine 0: on the CPU of host-1"]
    assert place(config(), _cpus(2, 2)).describe() == of_hosts
    assert place(config(), machines(1)).describe() == [
        "learner: on GPU 0, 45% of its memory, shared with engine 0",
        "engine 0: on GPU 0, 45% of its memory, shared with learner",
    ]
    assert place(config(tensor_parallel_size=2), machines(4)).describe()[1:] == [
        "engine 0: on GPU 0 and 1, 85% of its memory",
        "1 GPU idle: collector.num_actors sets the number of engines",
    ]


def _check_that_no_gpu_is_given_away_twice(plan: Placement) -> None:
    given, memory = defaultdict[tuple[int, int], float](float), defaultdict[tuple[int, int], float](float)
    for share in plan.shares:
        for gpu in share.gpus:
            assert gpu < plan.machines[share.machine].gpus
            given[share.machine, gpu] += share.num_gpus / len(share.gpus)
            memory[share.machine, gpu] += share.memory_fraction or 0.0
    assert max(given.values(), default=0.0) <= 1.0
    assert max(memory.values(), default=0.0) <= 0.95


def _cpus(*cores: int) -> list[Machine]:
    return [Machine(cpus=count, host=f"host-{number}") for number, count in enumerate(cores)]


@pytest.mark.parametrize(
    ("cores", "engines", "learner", "each"),
    [
        ((2,), 2, 0, [0, 0]),
        ((2, 2), 1, 0, [1]),
        ((2, 2), 3, 0, [1, 0, 1]),
        ((2, 2, 2), 2, 0, [1, 2]),
        ((4, 16), 1, 1, [1]),  # with both it carries 2 parts on 16 cores, the other machine would 1 on 4
        ((2, 8), 4, 1, [1, 1, 0, 1]),
        ((0, 2, 2), 2, 1, [2, 1]),  # Ray's head was told to have no cores: it is to do nothing else
        ((0,), 1, 0, [0]),
    ],
)
def test_what_computes_on_cpus_spreads_by_the_machines_cores(
    cores: tuple[int, ...], engines: int, learner: int, each: list[int]
) -> None:
    plan = place(config(engines), _cpus(*cores))
    assert plan.learner.machine == learner
    assert [share.machine for share in plan.engines] == each


def test_engines_without_gpus_spread_beside_a_learner_with_one() -> None:
    plan = place(config(2, num_gpus=0), [Machine(gpus=1, cpus=2), Machine(cpus=2)])
    assert plan.learner.gpus == (0,)
    assert [share.machine for share in plan.engines] == [0, 1]


@pytest.mark.parametrize(
    ("gpus", "fewest", "most", "engines"),
    [
        ((8,), 1, 16, [1.0] * 7),  # and the learner has one
        ((8,), 1, 4, [1.0] * 4),
        ((4, 4), 2, 16, [1.0] * 7),
        ((1,), 1, 16, [0.5]),  # nobody shares a GPU but for the least number
        ((1,), 2, 16, [0.25] * 2),
        ((0,), 1, 16, [0.0]),
        ((0, 0, 0), 1, 16, [0.0] * 3),  # one on each machine
        ((0, 0, 0), 1, 2, [0.0] * 2),
        ((0,), 2, 3, [0.0] * 2),
    ],
)
def test_a_range_of_engines_takes_what_there_is(
    gpus: tuple[int, ...], fewest: int, most: int, engines: list[float]
) -> None:
    ranged = config({"min": fewest, "max": most})
    assert asked(place(ranged, machines(*gpus)))[1] == engines


def test_a_range_is_the_right_way_round() -> None:
    with pytest.raises(ConfigError, match=r"min=4 is above max=2"):
        config({"min": 4, "max": 2})
