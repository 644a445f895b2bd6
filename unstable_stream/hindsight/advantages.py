"""Compute the advantages of an update: its steps' rewards after the sampling transformations."""

from collections.abc import Mapping
from typing import Final

from unstable_stream.archive import query
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.errors import ConfigError, EventError, RunError
from unstable_stream.events import LearnerUpdate, Step, decode_event
from unstable_stream.extensions import confined
from unstable_stream.hindsight.rerate import find_archived_run
from unstable_stream.reward_transformations import build_sampling
from unstable_stream.update_decisions import drawn_ids, shaped_rewards

__all__ = ["advantages"]

_UPDATE: Final = """
    SELECT value FROM events WHERE topic = 'learner-updates' AND run_id = $run AND type = 'learner-update'
        AND (value->>'$.update')::BIGINT = $update AND value->>'$.model' IS NOT DISTINCT FROM $model LIMIT 1
"""
_STEPS: Final = """
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
        _, config = find_archived_run(archive, run_id)
        with confined([]):
            transform = build_sampling(list(config.rewards.sampling))
        if not found or any(each.state() for each in transform.transforms):
            return {}
        event = decode_event(found[0][0].encode())
        assert isinstance(event, LearnerUpdate)
        drawn = drawn_ids(event)
        rows = query(archive, _STEPS, {"run": run_id, "ids": list(drawn)}).rows
        steps = {step_id: decode_event(value.encode()) for step_id, value in rows}
    except (ConfigError, RunError, EventError):
        return {}
    batch = [step for step_id in drawn if isinstance(step := steps.get(step_id), Step)]
    if len(batch) < len(drawn):
        return {}
    return dict(zip(drawn, shaped_rewards(batch, transform), strict=True))
