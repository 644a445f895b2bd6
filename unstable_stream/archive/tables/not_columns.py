"""List the event fields that are no column, each with the reason: every other field is a column.

A test holds this list against the structs; ``docs/reference/archive.md`` prints it.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from unstable_stream.events import (
    AdapterProbe,
    Checkpoint,
    Event,
    ExtensionUse,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Metrics,
    ProbeSequence,
    RecordRejected,
    RunStarted,
    Seat,
    SeatResult,
    Step,
    StepsDropped,
    StepTexts,
    Trajectory,
)

_PARENT: Final = "`checkpoints.parent_uid` says it of each `model_uid`."
_PROBE: Final = "`adapter_proofs` has what engines made of the probe, `events.value` has its tokens."
_TOKENS: Final = "`turns` has it; join by `trajectory_id` and `turn_index`."

NOT_COLUMNS: Final[Mapping[type[msgspec.Struct], Mapping[str, str]]] = {
    Event: {
        "event_id": "`events.event_id`. Where other tables refer to it, it is `trajectory_id` or `step_id`.",
        "schema_version": "It concerns decoding alone; the body in `events.value` has it.",
    },
    ExtensionUse: dict.fromkeys(
        ("kind", "target", "distribution", "version", "sha256"), "`run_events.extensions` has it."
    ),
    RunStarted: dict.fromkeys(
        ("log_id", "start_offsets"), "It concerns reading the log alone; `events.value` has it."
    ),
    GameStarted: {"seats": "Each is a row of `planned_seats`; `models` has their models."},
    GameOutcome: {
        "seats": "Each is a row of `seats`; `models`, `rewards` and `winner` sum them up.",
        "actions": "Each is a row of `actions`.",
        "unparsed": "`turns.format_feedback` says it of each move.",
        "finish_reasons": "`actions.finish_reason` has them.",
        "no_answers": "`seats.no_answers` has them.",
    },
    Seat: {"parent_uid": _PARENT},
    SeatResult: {"parent_uid": _PARENT},
    Trajectory: {
        "turns": "Each is a row of `turns`.",
        "rewards": "`game_outcomes.rewards` has them.",
        "roles": "`seats.role` says it of each seat.",
        "trained_seats": "`seats.trained` says it of each seat.",
    },
    Step: {
        "prompt_token_ids": _TOKENS,
        "completion_token_ids": _TOKENS,
        "logprobs": _TOKENS,
        "temperature": "`trajectories.temperature` has it.",
        "texts": _TOKENS,
    },
    StepTexts: dict.fromkeys(
        ("observation", "completion", "action", "valid", "format_feedback", "step_info"), _TOKENS
    ),
    Checkpoint: {"probe": _PROBE},
    AdapterProbe: dict.fromkeys(("dtype", "sequences"), _PROBE),
    ProbeSequence: dict.fromkeys(
        ("prompt_token_ids", "completion_token_ids", "logprobs", "base_logprobs"), _PROBE
    ),
    LearnerUpdate: {
        "step_ids": "Each is a row of `update_steps`.",
        "dropped": "Each is a row of `update_steps`.",
    },
    StepsDropped: {
        "run_id": "`update_steps.run_id` has it.",
        "occurred_at_ms": "`events.timestamp_ms` has it, at the record's position.",
        "update": "`update_steps.update` has it.",
        "model": "`update_steps.model` has it.",
        "dropped": "Each is a row of `update_steps`.",
    },
    Metrics: {"values": "Each is a row of `metrics`."},
    RecordRejected: {
        "record_headers": "`events.headers` has them, at the record's position.",
        "record_timestamp_ms": "`events.timestamp_ms` has it, at the record's position.",
    },
}
"""Struct to field to reason. What is listed of a struct holds for the structs derived from it."""
