"""What there is to verify of a run: how it was configured, how far it has come, what the log still holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream.events import (
    Checkpoint,
    ExtensionUse,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Rating,
    Step,
    Trajectory,
)
from unstable_stream.log.port import EventLog, Positions
from unstable_stream.model_pool import RatingProcessor
from unstable_stream.proofs.evidence import ends_of
from unstable_stream.reward_transformations import RewardProcessor
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import read_history
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
        run = (await read_history(log)).run(run_id)
        # Before the ends: whatever had been processed by then has its results below them.
        processed = {
            processor.inputs[0]: await _processed(log, processor.name, run_id)
            for processor in (RewardProcessor, RatingProcessor)
        }
        ends = await ends_of(log, _TOPICS)
        settings = await log.topic_settings()
        return cls(
            run_id=run_id,
            config=run.config(),
            code=run.extensions,
            state=run.state,
            first_update=run.updates_before + 1,
            replayed_run_id=run.replayed_run_id,
            ends=ends,
            trimmed={topic: any((await log.beginning_offsets(topic)).values()) for topic in _TOPICS},
            compacted=log.compacts and settings[Rating.TOPIC].cleanup_policy == "compact",
            processed=processed,
        )


async def _processed(log: EventLog, processor: str, run_id: str) -> Positions:
    """How far a processor has come, whether it serves this run alone or all runs."""
    alone = await log.committed_positions(group_of(processor, run_id))
    shared = await log.committed_positions(group_of(processor, None))
    return {at: max(alone.get(at, 0), shared.get(at, 0)) for at in alone.keys() | shared.keys()}
