"""Define what is recorded: frozen structs, one module per family, one codec, deterministic ids.

To add an event, write a struct in a module of its topic and export it here: its type is known by that.
"""

from unstable_stream.events.arrays import (
    PackedFloats,
    PackedTokens,
    pack_floats,
    pack_tokens,
    packed_length,
    unpack_floats,
    unpack_tokens,
)
from unstable_stream.events.checkpoints import (
    AdapterProbe,
    AdapterProof,
    Checkpoint,
    ProbeSequence,
    checkpoint_uid,
    is_checkpoint_uid,
    trained_model,
)
from unstable_stream.events.dead_letters import RecordRejected
from unstable_stream.events.envelope import LATEST_MS, MOST_LEVELS, Event, unfit
from unstable_stream.events.games import (
    ON_ENGINE,
    Action,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    Seat,
    SeatResult,
    are_partners,
)
from unstable_stream.events.ids import event_id, game_id, named_id, step_id, step_ids, trajectory_id
from unstable_stream.events.metrics import Metrics
from unstable_stream.events.ratings import OVERALL, Rating
from unstable_stream.events.runs import (
    EnginesChanged,
    EnginesWanted,
    ExtensionUse,
    PartChanged,
    RunFinished,
    RunResumed,
    RunStarted,
)
from unstable_stream.events.steps import Step, StepTexts
from unstable_stream.events.storable import storable_text, storable_values
from unstable_stream.events.trajectories import Trajectory, Turn
from unstable_stream.events.updates import CollapseWarning, DroppedStep, LearnerUpdate, StepsDropped

# isort: split
# They know the events of all modules above.
from unstable_stream.events.codec import EVENT_TYPES, decode_event, encode_event, event_type
from unstable_stream.events.descriptions import event_schemas, field_description, recorded_structs

__all__ = [
    "EVENT_TYPES",
    "LATEST_MS",
    "MOST_LEVELS",
    "ON_ENGINE",
    "OVERALL",
    "Action",
    "AdapterProbe",
    "AdapterProof",
    "Checkpoint",
    "CollapseWarning",
    "DroppedStep",
    "EnginesChanged",
    "EnginesWanted",
    "Event",
    "ExtensionUse",
    "GameAbandoned",
    "GameOutcome",
    "GameStarted",
    "LearnerUpdate",
    "Metrics",
    "PackedFloats",
    "PackedTokens",
    "PartChanged",
    "ProbeSequence",
    "Rating",
    "RecordRejected",
    "RunFinished",
    "RunResumed",
    "RunStarted",
    "Seat",
    "SeatResult",
    "Step",
    "StepTexts",
    "StepsDropped",
    "Trajectory",
    "Turn",
    "are_partners",
    "checkpoint_uid",
    "decode_event",
    "encode_event",
    "event_id",
    "event_schemas",
    "event_type",
    "field_description",
    "game_id",
    "is_checkpoint_uid",
    "named_id",
    "pack_floats",
    "pack_tokens",
    "packed_length",
    "recorded_structs",
    "step_id",
    "step_ids",
    "storable_text",
    "storable_values",
    "trained_model",
    "trajectory_id",
    "unfit",
    "unpack_floats",
    "unpack_tokens",
]
