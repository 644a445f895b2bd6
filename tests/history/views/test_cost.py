"""The cost of a run, by hand-worked numbers."""

from pathlib import Path

import pytest

from tests.archive.history import made_up_run
from tests.builders import made
from tests.places import archived
from unstable_stream.archive import query
from unstable_stream.errors import RunError
from unstable_stream.events import (
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Metrics,
    PartChanged,
    ProcessCost,
    RunResumed,
    RunStarted,
    Trajectory,
    Turn,
    pack_floats,
    pack_tokens,
)
from unstable_stream.history.views.cost import PartCost, run_cost

RUN = "run-test"


def _cost(process: str, incarnation: str, wall_s: float, cpu_s: float, **fields: object) -> ProcessCost:
    return made(ProcessCost, process=process, incarnation=incarnation, wall_s=wall_s, cpu_s=cpu_s, **fields)


def _game(index: int, started_s: float, ended_s: float | None = None, duration_s: float = 0) -> list[Event]:
    """Return a game, played at last for ``duration_s`` until ``ended_s``; ``None``: it has not ended."""
    start = made(GameStarted, game_index=index, seats=(), occurred_at_ms=int(started_s * 1000))
    if ended_s is None:
        return [start]
    ended_ms = int(ended_s * 1000)
    end = made(GameOutcome, start, seats=(), occurred_at_ms=ended_ms, duration_ms=duration_s * 1000)
    return [start, end]


def test_costs_of_two_lives_add_up_whatever_the_order_of_reports(tmp_path: Path) -> None:
    reports = [
        _cost("inline", "b", 20, 5, parts={"learner": 2.0, "log": 0.5}, peak_memory_bytes=700),
        _cost("inline", "a", 60, 30, parts={"learner": 10.0, "log": 1.0}, peak_memory_bytes=900, gpu_s=60),
        _cost("inline", "a", 120, 70, parts={"learner": 25.0, "log": 2.0}, peak_memory_bytes=950, gpu_s=120),
        _cost("archiver", "c", 120, 8, parts={"log": 1.0}),
    ]
    late = [reports[2], *reports, reports[1]]  # twice, and after a later one
    archive = archived(tmp_path, [made(RunStarted), *late])
    cost = run_cost(archive, RUN)
    assert cost.used is not None
    assert cost.used.parts == [
        PartCost("inline", None, 2, 75.0, 120.0, 950),
        PartCost("inline", "learner", None, 27.0, None, None),
        PartCost("inline", "log", None, 2.5, None, None),
        PartCost("inline", "rest", None, 45.5, None, None),
        PartCost("archiver", None, 1, 8.0, 0.0, None),
        PartCost("archiver", "log", None, 1.0, None, None),
        PartCost("archiver", "rest", None, 7.0, None, None),
    ]
    assert cost.used.cpu_s == 83
    assert cost.used.gpu_s == 120
    assert cost.used.record_cpu_s == 2.5 + 8, "the archiver's part of the log counts once"


def test_run_without_reports_has_no_cost_rather_than_zero(tmp_path: Path) -> None:
    archive = archived(tmp_path, [*made_up_run(), made(RunStarted, run_id="run-empty")])
    old, empty = run_cost(archive, "run-a"), run_cost(archive, "run-empty")
    assert old.used is None
    assert old.sampled_tokens == query(archive, "SELECT sum(completion_tokens) FROM turns").rows[0][0]
    assert (empty.sampled_tokens, empty.trained_tokens, empty.learner_waits) == (None, None, None)
    assert query(archive, "SELECT cpu_s, gpu_s, record_cpu_s, engines_wait FROM run_costs").rows[0] == (
        None,
        None,
        None,
        None,
    )
    with pytest.raises(RunError, match="no run 'run-b'"):
        run_cost(archive, "run-b")


def test_generation_thrown_away_by_each_fault_is_counted(tmp_path: Path) -> None:
    """Killed after its last record at 20 s, resumed at 100 s, and one worker lost at 130 s."""
    resumed = made(RunResumed, occurred_at_ms=100_000)
    lost = made(PartChanged, event_id="lost", occurred_at_ms=130_000, part="rollout-0", change="lost")
    games = [
        *_game(0, 1, 20, 15),  # had ended: nothing of it is lost
        *_game(1, 5, 125, 20),  # played again at 105 s: 15 s are lost
        *_game(2, 12, 150, 10),  # played again at 105 s, and at 140 s: 8 s, then 25 s are lost
        *_game(3, 110, 145, 30),  # began at 115 s with another worker: nothing is lost
        *_game(4, 18),  # given up: 2 s are lost
        made(GameAbandoned, game_index=4, occurred_at_ms=101_000),
    ]
    archive = archived(tmp_path, [made(RunStarted), resumed, lost, *games])
    found = query(archive, "SELECT fault, games, lost_s FROM faults ORDER BY occurred_at").rows
    assert found == [("resumed", 3, 15 + 8 + 2), ("rollout-0", 1, 25)]
    assert run_cost(archive, RUN).lost_s == 50
    assert run_cost(archive, RUN).faults == 2


def test_worker_that_ends_with_its_collector_is_one_fault_and_of_a_resumption_none(tmp_path: Path) -> None:
    def added(second: int) -> PartChanged:
        at_ms = second * 1000
        return made(PartChanged, event_id=f"{at_ms}", occurred_at_ms=at_ms, part="rollout-0", change="added")

    resumed = made(RunResumed, occurred_at_ms=50_000)
    archive = archived(tmp_path, [made(RunStarted), added(2), added(30), resumed, added(52), *_game(0, 20)])
    found = query(
        archive, "SELECT fault, epoch(occurred_at), games, lost_s FROM faults ORDER BY occurred_at"
    ).rows
    assert found == [("rollout-0", 30, 1, 0), ("resumed", 50, 1, 0)], "nothing is heard after its start"


def test_shares_of_time_that_parts_wait_for_each_other(tmp_path: Path) -> None:
    def update(number: int, second: int, seconds: float, resumption: int) -> LearnerUpdate:
        of_update = {"update": number, "occurred_at_ms": second * 1000, "duration_ms": seconds * 1000}
        return made(LearnerUpdate, resumption=resumption, metrics={"completion_tokens": 5.0}, **of_update)

    turns = [
        made(
            Turn,
            turn_index=place,
            latency_ms=1500.0,
            completion_token_ids=pack_tokens([1, 2, 3]),
            logprobs=pack_floats([0.0] * 3),
        )
        for place in range(2)
    ]
    start, end = _game(0, 1, 11, 4)
    spoken = made(Trajectory, start, turns=tuple(turns))
    # Started anew between the second and the third report.
    reports = [
        made(
            Metrics,
            event_id=f"idle at {second}",
            occurred_at_ms=second * 1000,
            source="engine-0",
            values={"inference/engine-0/idle_s": idle_s},
        )
        for second, idle_s in [(10, 20.0), (15, 23.0), (20, 1.0), (25, 6.0)]
    ]
    updates = [update(1, 10, 2, 0), update(2, 20, 4, 0), update(3, 500, 3, 1), update(4, 510, 1, 1)]
    cost = run_cost(archived(tmp_path, [made(RunStarted), start, end, spoken, *reports, *updates]), RUN)
    assert cost.learner_waits == pytest.approx(1 - (4 + 1) / (10 + 10)), "not while the run was down"
    assert cost.games_wait == pytest.approx(3 / 4)
    assert cost.engines_wait == pytest.approx((3 + 5) / (5 + 5))
    assert (cost.prompt_tokens, cost.sampled_tokens, cost.trained_tokens) == (2, 6, 20)
    assert (cost.generation_s, cost.learner_s, cost.lost_s) == (3.0, 10.0, 0.0)
