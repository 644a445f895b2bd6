"""Shape a run's rewards anew, by other transformations, and report the differences.

Two fresh reward processors fold each partition of ``trajectories``: one with the run's transformations, one
with the new ones. Their steps differ only in the rewards. Then the trained batches go through both sampling
transformations. The recorded steps do not change. The new rewards are a labelled set beside the archive
(:mod:`unstable_stream.archive.what_if`), which can be joined with ``steps`` by ``step_id``.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from unstable_stream.algorithms.update_decisions import SamplingTransform, drawn_ids, shaped_rewards
from unstable_stream.archive import query
from unstable_stream.archive.what_if import LabelledSet
from unstable_stream.errors import ConfigError, EventError, RunError
from unstable_stream.events import LearnerUpdate, Step, Trajectory, decode_event
from unstable_stream.events.id_sets import IdTable
from unstable_stream.extensions import confined
from unstable_stream.history.hindsight.rerate import COLUMN_TYPES, archived_config
from unstable_stream.log.port import EventLog
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.reward_transformations import build_sampling
from unstable_stream.runs.config import RewardConfig, RunConfig, parse_config, read_toml
from unstable_stream.runs.starts import run_events
from unstable_stream.services.streams.processor import Processor
from unstable_stream.services.streams.processors import REWARDS


class Advantage(NamedTuple):
    """The training values of one step of a batch."""

    model: str | None
    update: int
    step_id: str
    env_id: str
    role: str
    advantage: float
    advantage_used: float


class _Member(NamedTuple):
    place: int
    role: str
    used: Step
    new: Step


class _TrainedBatches:
    """First pass all updates, then call :meth:`seal`, then pass every step with both rewards.

    It holds the steps of incomplete batches, and 16 bytes for every trained step.
    """

    def __init__(self, *settings: Sequence[Mapping[str, Any]]) -> None:
        """Take the used sampling transformations and the new ones; raises :class:`ConfigError`."""
        self._settings = [list(each) for each in settings]
        self._of_model: dict[str | None, list[SamplingTransform]] = {None: self._build()}
        """Of each trained model, the used transformations and the new ones: they may have a state."""
        self._ids = IdTable()
        self._updates: dict[tuple[str | None, int], int] = {}
        """By model and number, the place of the first of its steps among all."""
        self._firsts = [0]
        self._open: dict[int, list[_Member]] = {}
        self.done = 0
        """The number of complete batches."""

    def _build(self) -> list[SamplingTransform]:
        return [build_sampling(each) for each in self._settings]

    def expect(self, update: LearnerUpdate) -> None:
        """Add the steps that an update drew; an update passed twice counts once."""
        key = update.model, update.update
        if key not in self._updates:
            drawn = drawn_ids(update)
            for step_id in drawn:
                self._ids.add(step_id)
            self._updates[key] = self._firsts[-1]
            self._firsts.append(self._firsts[-1] + len(drawn))

    def seal(self) -> None:
        """Sort the steps; no update may be added after this."""
        self._ids.seal()
        self._names = list(self._updates)

    def add(self, used: Sequence[Step], new: Sequence[Step], role: str) -> list[Advantage]:
        """Add a trajectory's steps; return the advantages of the batches that are complete now."""
        places = self._ids.find([step.event_id for step in used])
        advantages = []
        for place, before, after in zip(places, used, new, strict=True):
            if place < 0:
                continue
            number = bisect_right(self._firsts, place) - 1
            members = self._open.setdefault(number, [])
            members.append(_Member(place, role, before, after))
            if len(members) == self._firsts[number + 1] - self._firsts[number]:
                advantages += self._close(number)
        return advantages

    def _close(self, number: int) -> list[Advantage]:
        members = sorted(self._open.pop(number), key=lambda member: member.place)
        model, update = self._names[number]
        self.done += 1
        if model not in self._of_model:
            self._of_model[model] = self._build()
        transform_used, transform_new = self._of_model[model]
        before = shaped_rewards([member.used for member in members], transform_used)
        after = shaped_rewards([member.new for member in members], transform_new)
        return [
            Advantage(model, update, member.new.event_id, member.new.env_id, member.role, now, then)
            for member, now, then in zip(members, after, before, strict=True)
        ]


_TOLD_EVERY: Final = 200
_CHUNK_ROWS: Final = 10_000
_STEPS: Final = {
    "run_id": "VARCHAR",
    "step_id": "VARCHAR",
    "trajectory_id": "VARCHAR",
    "game_id": "VARCHAR",
    "env_id": "VARCHAR",
    "seat": "INTEGER",
    "role": "VARCHAR",
    "turn_index": "INTEGER",
    "model_uid": "VARCHAR",
    "policy_version": "INTEGER",
    "raw_reward": "DOUBLE",
    "final_reward": "DOUBLE",
    "final_reward_used": "DOUBLE",
    "reward": "DOUBLE",
    "reward_used": "DOUBLE",
}
_ADVANTAGES: Final = {"run_id": "VARCHAR"} | {
    name: COLUMN_TYPES[kind] for name, kind in Advantage.__annotations__.items()
}
_SUMMARY: Final = """
WITH stages AS (
    SELECT 1 AS place, 'final' AS stage, role, final_reward AS new, final_reward_used AS used FROM steps
    UNION ALL SELECT 2, 'step', role, reward, reward_used FROM steps
    UNION ALL SELECT 3, 'advantage', role, advantage, advantage_used FROM advantages
)
SELECT
    stage, coalesce(role, '*'), count(*),
    count(*) FILTER (new <> used), count(*) FILTER (sign(new) <> sign(used)),
    favg(new - used), min(new - used), quantile_cont(new - used, 0.05), median(new - used),
    quantile_cont(new - used, 0.95), max(new - used)
FROM stages GROUP BY GROUPING SETS ((place, stage), (place, stage, role)) ORDER BY place, role NULLS FIRST
"""


@dataclass(frozen=True, slots=True)
class RewardChange:
    """The differences of one stage's values: new minus used."""

    stage: str
    """``final`` and ``step``: the values of every step after these transformations; ``advantage``: the values
    of every trained step after the sampling transformations.
    """
    role: str
    """A role, or the seat if the environment has no roles; ``*``: all."""
    steps: int
    differing: int
    sign_flips: int
    """Steps whose value has another sign, or is zero in only one of the two: they teach something else."""
    mean: float
    lowest: float
    percentile_5: float
    median: float
    percentile_95: float
    highest: float


@dataclass(frozen=True, slots=True)
class Rederived:
    """The result of a rederive."""

    run_id: str
    steps: int
    differing: int
    """The number of steps with another reward."""
    updates: int
    """The number of updates whose batches were transformed."""
    seconds: float
    changes: Sequence[RewardChange]


def load_rewards(path: Path, config: RunConfig) -> RewardConfig:
    """Return a run's rewards changed by the ``[rewards]`` table of a TOML file.

    The file may hold a whole configuration. Stages that are not in the table do not change.

    Raises:
        ConfigError: the file or the table does not exist, or a run cannot have this table.
    """
    rewards = read_toml(path).get("rewards")
    if not isinstance(rewards, Mapping):
        raise ConfigError(
            f"{path}: expected a [rewards] table with final, step or sampling, as in a run's configuration"
        )
    whole = config.model_dump(mode="json")
    return parse_config({**whole, "rewards": {**whole["rewards"], **rewards}}, origin=str(path)).rewards


async def rederive(
    log: EventLog,
    run_id: str,
    config: RunConfig,
    rewards: RewardConfig,
    out: LabelledSet,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Rederived:
    """Shape a run's rewards anew, write them to ``out`` and finish its tables; ``run_id`` is the full id.

    ``on_progress`` is told now and then how many trajectories are done.

    Raises:
        ConfigError: a transformation is unknown, or returned something that is no reward.
    """
    began = time.perf_counter()
    batches = _TrainedBatches(config.rewards.sampling, rewards.sampling)
    async for _, event in run_events(log, (LearnerUpdate.TOPIC,), run_id):
        if isinstance(event, LearnerUpdate):
            batches.expect(event)
    batches.seal()
    configs = config, config.model_copy(update={"rewards": rewards})
    processors: dict[int, list[Processor]] = {}
    steps: list[tuple[Any, ...]] = []
    advantages: list[tuple[Any, ...]] = []

    def write() -> None:
        out.write_rows("steps", _STEPS, steps)
        out.write_rows("advantages", _ADVANTAGES, advantages)
        steps.clear()
        advantages.clear()

    done = 0
    async for record, event in run_events(log, (Trajectory.TOPIC,), run_id):
        if not isinstance(event, Trajectory):
            continue
        if record.partition not in processors:
            # Each partition has its own state, as in the live run.
            processors[record.partition] = [REWARDS.make(run_id, each) for each in configs]
        done += 1
        if not done % _TOLD_EVERY:
            on_progress(done)
        try:
            used, new = (_shaped(processor, event) for processor in processors[record.partition])
        except EventError:
            continue  # the record was set aside when it was first read
        role = event.role or f"seat {event.seat}"
        steps += [_row(role, before, after) for before, after in zip(used, new, strict=True)]
        advantages += [(run_id, *each) for each in batches.add(used, new, role)]
        if len(steps) >= _CHUNK_ROWS:
            write()
    write()
    out.finish_tables()
    changes = [RewardChange(*row) for row in out.query(_SUMMARY).rows]
    overall = next((change for change in changes if (change.stage, change.role) == ("step", "*")), None)
    both = {"rewards": rewards, "rewards_used": config.rewards}
    out.describe("rederive", run_id, **{name: each.model_dump(mode="json") for name, each in both.items()})
    return Rederived(
        run_id=run_id,
        steps=overall.steps if overall else 0,
        differing=overall.differing if overall else 0,
        updates=batches.done,
        seconds=time.perf_counter() - began,
        changes=changes,
    )


def _shaped(processor: Processor, event: Trajectory) -> list[Step]:
    return [step for step in processor.handle(event) if isinstance(step, Step)]


def _row(role: str, used: Step, new: Step) -> tuple[Any, ...]:
    """Return a row of the table ``steps``."""
    return (
        *(new.run_id, new.event_id, new.trajectory_id, new.game_id, new.env_id, new.seat, role),
        *(new.turn_index, new.model_uid, new.policy_version, new.raw_reward),
        *(new.final_reward, used.final_reward, new.reward, used.reward),
    )


_UPDATE: Final = """
    SELECT value FROM events WHERE topic = 'learner-updates' AND run_id = $run AND type = 'learner-update'
        AND (value->>'$.update')::BIGINT = $update AND value->>'$.model' IS NOT DISTINCT FROM $model LIMIT 1
"""
_DRAWN_STEPS: Final = """
    SELECT event_id, any_value(value) FROM events
    WHERE topic = 'steps' AND run_id = $run AND event_id IN (SELECT unnest($ids)) GROUP BY event_id
"""


def advantages(
    archive: ArchiveAddress, run_id: str, update: int, model: str | None = None
) -> Mapping[str, float]:
    """Return step id to advantage, of the whole batch; empty where they cannot be told.

    ``model`` is the name of one of several trained models, which each count their own updates.

    That is where the run's transformations are code of its own, which is not loaded here, or learn from one
    batch to the next, or where the archive lacks a step of the batch.
    """
    found = query(archive, _UPDATE, {"run": run_id, "update": update, "model": model}).rows
    try:
        _, config = archived_config(archive, run_id)
        with confined([]):
            transform = build_sampling(list(config.rewards.sampling))
        if not found or any(transform.state()["stages"]):
            return {}
        event = decode_event(found[0][0].encode())
        assert isinstance(event, LearnerUpdate)
        drawn = drawn_ids(event)
        rows = query(archive, _DRAWN_STEPS, {"run": run_id, "ids": list(drawn)}).rows
        steps = {step_id: decode_event(value.encode()) for step_id, value in rows}
    except (ConfigError, RunError, EventError):
        return {}
    batch = [step for step_id in drawn if isinstance(step := steps.get(step_id), Step)]
    if len(batch) < len(drawn):
        return {}
    return dict(zip(drawn, shaped_rewards(batch, transform), strict=True))
