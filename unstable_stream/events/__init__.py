"""Define what is recorded: frozen structs, one codec, deterministic ids.

To add an event, write a struct in one of the modules and export it here: its type is known by that.
"""

from unstable_stream.events.arrays import PackedFloats as PackedFloats
from unstable_stream.events.arrays import PackedTokens as PackedTokens
from unstable_stream.events.arrays import pack_floats as pack_floats
from unstable_stream.events.arrays import pack_tokens as pack_tokens
from unstable_stream.events.arrays import packed_length as packed_length
from unstable_stream.events.arrays import unpack_floats as unpack_floats
from unstable_stream.events.arrays import unpack_tokens as unpack_tokens
from unstable_stream.events.envelope import LATEST_MS as LATEST_MS
from unstable_stream.events.envelope import MOST_LEVELS as MOST_LEVELS
from unstable_stream.events.envelope import Event as Event
from unstable_stream.events.envelope import unfit as unfit
from unstable_stream.events.games import IMPORTED as IMPORTED
from unstable_stream.events.games import ON_ENGINE as ON_ENGINE
from unstable_stream.events.games import OVERALL as OVERALL
from unstable_stream.events.games import Action as Action
from unstable_stream.events.games import GameAbandoned as GameAbandoned
from unstable_stream.events.games import GameOutcome as GameOutcome
from unstable_stream.events.games import GamePosition as GamePosition
from unstable_stream.events.games import GameStarted as GameStarted
from unstable_stream.events.games import Rating as Rating
from unstable_stream.events.games import Seat as Seat
from unstable_stream.events.games import SeatResult as SeatResult
from unstable_stream.events.games import Step as Step
from unstable_stream.events.games import StepTexts as StepTexts
from unstable_stream.events.games import Trajectory as Trajectory
from unstable_stream.events.games import Turn as Turn
from unstable_stream.events.games import are_partners as are_partners
from unstable_stream.events.ids import event_id as event_id
from unstable_stream.events.ids import game_id as game_id
from unstable_stream.events.ids import named_id as named_id
from unstable_stream.events.ids import now_ms as now_ms
from unstable_stream.events.ids import step_id as step_id
from unstable_stream.events.ids import step_ids as step_ids
from unstable_stream.events.ids import trajectory_id as trajectory_id
from unstable_stream.events.runs import UNREADABLE as UNREADABLE
from unstable_stream.events.runs import AdapterProbe as AdapterProbe
from unstable_stream.events.runs import AdapterProof as AdapterProof
from unstable_stream.events.runs import Checkpoint as Checkpoint
from unstable_stream.events.runs import CollapseWarning as CollapseWarning
from unstable_stream.events.runs import DroppedStep as DroppedStep
from unstable_stream.events.runs import EnginesChanged as EnginesChanged
from unstable_stream.events.runs import EnginesWanted as EnginesWanted
from unstable_stream.events.runs import EnvironmentUse as EnvironmentUse
from unstable_stream.events.runs import ExtensionUse as ExtensionUse
from unstable_stream.events.runs import LearnerUpdate as LearnerUpdate
from unstable_stream.events.runs import Metrics as Metrics
from unstable_stream.events.runs import PartChanged as PartChanged
from unstable_stream.events.runs import ProbeSequence as ProbeSequence
from unstable_stream.events.runs import ProcessCost as ProcessCost
from unstable_stream.events.runs import RecordRejected as RecordRejected
from unstable_stream.events.runs import RunFinished as RunFinished
from unstable_stream.events.runs import RunResumed as RunResumed
from unstable_stream.events.runs import RunStarted as RunStarted
from unstable_stream.events.runs import StepsDropped as StepsDropped
from unstable_stream.events.runs import checkpoint_uid as checkpoint_uid
from unstable_stream.events.runs import is_checkpoint_uid as is_checkpoint_uid
from unstable_stream.events.runs import trained_model as trained_model
from unstable_stream.events.storable import storable_text as storable_text
from unstable_stream.events.storable import storable_values as storable_values

# isort: split
# They know the events of all modules above.
from unstable_stream.events.codec import EVENT_TYPES as EVENT_TYPES
from unstable_stream.events.codec import decode_event as decode_event
from unstable_stream.events.codec import encode_event as encode_event
from unstable_stream.events.codec import event_type as event_type
from unstable_stream.events.descriptions import field_description as field_description
