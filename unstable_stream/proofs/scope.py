"""What there is to verify of a run: how it was configured, how far it has come, what the log still holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream.errors import RunError
from unstable_stream.events import (
    Checkpoint,
    ExtensionUse,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Rating,
    RunFinished,
    RunResumed,
    RunStarted,
    Step,
    Trajectory,
    event_id,
)
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Positions
from unstable_stream.log.reading import events_to_end
from unstable_stream.model_pool import RatingProcessor
from unstable_stream.reward_transformations import RewardProcessor
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.streams.folds import group_of

__all__ = ["RunScope"]

# Effects before causes: of a run that is going on, every effect read then has its cause among what is read.
_TOPICS: Final = (
    LearnerUpdate.TOPIC,
    Checkpoint.TOPIC,
    Rating.TOPIC,
    Step.TOPIC,
    Trajectory.TOPIC,
    GameOutcome.TOPIC,
    GameStarted.TOPIC,
)


@dataclass(frozen=True)
class RunScope:
    """One run as it stands at one moment."""

    run_id: str
    config: RunConfig
    code: Sequence[ExtensionUse]
    """What was recorded of the code that the configuration names."""
    state: str
    """``running`` (or killed), ``completed``, ``stopped`` or ``failed``."""
    first_update: int
    """1, or where the run was forked from another."""
    replayed_run_id: str | None
    """The run whose steps it trains on instead of playing games."""
    ends: Mapping[str, Positions]
    """By topic: nothing beyond is looked at."""
    trimmed: Mapping[str, bool]
    """By topic: whether retention has deleted some of it."""
    compacted: bool
    """Whether only the newest rating of each model is sure to be there."""
    processed: Mapping[str, Positions]
    """By topic: how far its processor has come; empty if nobody remembers."""

    @classmethod
    async def read(cls, log: EventLog, run_id: str) -> "RunScope":
        """Look at the log now; raises :class:`RunError` if there is no such run."""
        configs: dict[int, Mapping[str, object]] = {}
        code: dict[int, Sequence[ExtensionUse]] = {}
        outcomes: dict[str, str] = {}
        first_update = 1
        replayed_run_id: str | None = None
        async for _, event in events_to_end(log, (RunStarted.TOPIC,), run_id=run_id):
            if isinstance(event, RunStarted):
                configs[0] = event.config
                code[0] = event.extensions
                first_update = (event.parent_update or 0) + 1
                replayed_run_id = event.parent_run_id if event.replays else None
            elif isinstance(event, RunResumed):
                configs[event.resumption] = event.config
                code[event.resumption] = event.extensions
            elif isinstance(event, RunFinished):
                outcomes[event.event_id] = event.outcome
        if not configs:
            raise RunError(f"no run {run_id!r} in this log")
        # Before the ends: whatever had been processed by then has its results below them.
        processed = {
            processor.inputs[0]: await _processed(log, processor.name, run_id)
            for processor in (RewardProcessor, RatingProcessor)
        }
        ends = {topic: await log.end_offsets(topic) for topic in _TOPICS}
        # A game's trajectories and outcome are appended at once: take both or neither.
        while (again := await log.end_offsets(Trajectory.TOPIC)) != ends[Trajectory.TOPIC]:
            ends[Trajectory.TOPIC] = again
            for topic in (GameOutcome.TOPIC, GameStarted.TOPIC):
                ends[topic] = await log.end_offsets(topic)
        settings = await log.topic_settings()
        return cls(
            run_id=run_id,
            config=parse_config(configs[max(configs)], origin=f"run {run_id}"),
            code=code[max(code)],
            state=outcomes.get(event_id(run_id, "run-finished", max(configs)), "running"),
            first_update=first_update,
            replayed_run_id=replayed_run_id,
            ends=ends,
            trimmed={topic: any((await log.beginning_offsets(topic)).values()) for topic in _TOPICS},
            # A local log keeps every record, whatever the policy.
            compacted=not isinstance(log, LocalLog) and settings[Rating.TOPIC].cleanup_policy == "compact",
            processed=processed,
        )


async def _processed(log: EventLog, processor: str, run_id: str) -> Positions:
    """How far a processor has come, whether it serves this run alone or all runs."""
    alone = await log.committed_positions(group_of(processor, run_id))
    shared = await log.committed_positions(group_of(processor, None))
    return {at: max(alone.get(at, 0), shared.get(at, 0)) for at in alone.keys() | shared.keys()}
