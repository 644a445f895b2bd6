"""Topics ``games``, ``game-outcomes``, ``trajectories``, ``steps`` and ``ratings``: from games to steps.

- ``games``, the decision to play a game, is written by the collector; read by the collector itself after a
  restart and by the archive.
- ``game-outcomes`` and ``trajectories``, one seat's view of one game, are written by rollout workers in one
  transaction; read by the processors, the collector, the archive and the live view.
- ``steps``, trainable turns with their shaped rewards, are written by the reward processor; read by the
  learner and the archive. Derived: they can be recomputed from ``trajectories`` at any time.
- ``ratings`` are written by the rating processor; read by the collector and the archive.
"""

from typing import Any, Final

import msgspec

from unstable_stream.events.arrays import PackedFloats, PackedTokens
from unstable_stream.events.envelope import Event, Int64

ON_ENGINE: Final = frozenset({"checkpoint", "adapter"})
"""Kinds of seats whose moves the run's engine samples; the sampled tokens are recorded."""
IMPORTED: Final = "imported"
"""The split of games that were played elsewhere; nobody here can play them again."""
OVERALL: Final = "*"
"""The ``env_id`` of a rating over all environments."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """The player of one seat."""

    seat: int
    """0-based player number in the environment."""
    model_uid: str
    """``ckpt-000000`` (the initial policy), ``ckpt-000012``, or the name of a fixed opponent."""
    kind: str
    """``checkpoint`` (of this run), ``adapter`` (a fixed adapter of the same base model), ``model`` (another
    model), ``openai`` (an endpoint), ``scripted`` or ``human``."""
    policy_version: int | None = None
    """Learner update that made the checkpoint; 0 is the initial policy, ``None`` for a fixed opponent."""
    parent_uid: str | None = None
    """The checkpoint this one was trained from: where its rating starts. ``None``: it has no parent."""
    template: str | None = None
    """Prompt template; ``None`` for scripted opponents."""
    trained: bool = False
    """Whether this seat's turns become training steps."""
    team: int | None = None
    """The team that the seat wins and loses with, from 0; ``None``: it plays for itself."""
    role: str | None = None
    """The role that the environment deals to the seat with this seed, where it decides on the player or the
    team; ``None``: nobody looked."""


class Action(msgspec.Struct, frozen=True, array_like=True):
    """One move of a game, in order of play; with the seed it replays the game."""

    seat: int
    """The seat that moved."""
    action: str
    """Exactly what was passed to the environment."""
    valid: bool = True
    """Whether the environment accepted it."""


class GamePosition(msgspec.Struct, frozen=True, kw_only=True):
    """A position of a recorded game from which another one is played on."""

    game_id: str
    """The game that has it."""
    turn: int
    """The number of its moves before the position."""
    seed: Int64
    """The seed of the environment: that game's. The players of the new game have a seed of their own."""
    moves: int
    """The number of moves that are made again, those tried after the position among them."""


class GameStarted(Event, frozen=True, kw_only=True, tag="game-started"):
    """A game was decided on: replay uses this, it never samples again. Natural key: split, game index."""

    TOPIC = "games"

    game_id: str
    """The game."""
    game_index: int
    """0, 1, 2, … within run and split."""
    split: str
    """``train``, ``eval``, ``human``: a person plays, or ``imported``: it was played elsewhere."""
    env_id: str
    """TextArena environment."""
    seed: Int64
    """Seeds the environment, the scripted opponents and the sampling of this game."""
    seats: tuple[Seat, ...]
    """One per player, by seat."""
    evaluated_uid: str | None = None
    """The checkpoint under evaluation; ``None`` in the train split, and where opponents play each other."""
    position: GamePosition | None = None
    """The position where it begins; ``None``: at the beginning."""
    moves: tuple[Action, ...] = ()
    """The moves that lead there, made again without asking the players."""


class GameAbandoned(Event, frozen=True, kw_only=True, tag="game-abandoned"):
    """A started game will never finish. Natural key: game id."""

    TOPIC = "games"

    game_id: str
    """The game."""
    game_index: int
    """0, 1, 2, … within run and split."""
    split: str
    """``train``, ``eval``, ``human``: a person plays, or ``imported``: it was played elsewhere."""
    reason: str
    """The reason for giving it up."""


class SeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one seat."""

    seat: int
    """0-based player number in the environment."""
    model_uid: str
    """``ckpt-000000`` (the initial policy), ``ckpt-000012``, or the name of a fixed opponent."""
    kind: str
    """``checkpoint`` (of this run), ``adapter`` (a fixed adapter of the same base model), ``openai`` (an
    endpoint), ``scripted`` or ``human``."""
    reward: float
    """The environment's final reward; TextArena gives -1, 0 or 1."""
    rank: int
    """0 is best; equal rewards share a rank."""
    policy_version: int | None = None
    """Learner update that made the checkpoint; 0 is the initial policy, ``None`` for a fixed opponent."""
    parent_uid: str | None = None
    """The checkpoint this one was trained from: where its rating starts. ``None``: it has no parent."""
    role: str | None = None
    """The environment's name for the seat (``Mafia``, ``Proposer``); ``None``: it has none."""
    trained: bool = False
    """Whether this seat's turns become training steps."""
    invalid_moves: int = 0
    """Moves of this seat that the environment refused; those made again are left out, as in ``turns``."""
    turns: int = 0
    """Moves of this seat; those made again to the game's position are left out."""
    team: int | None = None
    """The team that the seat won or lost with, from 0; ``None``: it played for itself."""


class GameOutcome(Event, frozen=True, kw_only=True, tag="game-outcome"):
    """One finished game, train or eval. Natural key: game id."""

    TOPIC = "game-outcomes"

    game_id: str
    """The game."""
    game_index: int
    """0, 1, 2, … within run and split."""
    split: str
    """``train``, ``eval``, ``human``: a person plays, or ``imported``: it was played elsewhere."""
    env_id: str
    """TextArena environment."""
    seed: Int64
    """Seeds the environment, the scripted opponents and the sampling of this game."""
    seats: tuple[SeatResult, ...]
    """One per player, by seat."""
    reason: str
    """``win``, ``draw``, ``invalid-move`` or ``truncated``."""
    reason_text: str = ""
    """The environment's words about the end."""
    invalid_seat: int | None = None
    """The seat whose invalid move ended the game; ``None``: nobody's did."""
    actions: tuple[Action, ...] = ()
    """Every move in order of play; with the seed they replay the game."""
    num_turns: int = 0
    """Moves of all seats."""
    duration_ms: float = 0.0
    """Milliseconds from reset to end."""
    evaluated_uid: str | None = None
    """The checkpoint under evaluation; ``None`` in the train split, and where opponents play each other."""
    position: GamePosition | None = None
    """The position where it began: the first ``position.moves`` of ``actions`` were made again. ``None``: at
    the beginning."""
    least_likely_turn: int | None = None
    """The move, 0-based, whose answer was the least probable among those of the trained seats; ``None``: none
    is trained, or it was recorded before there was this field."""
    unparsed: dict[int, int] = msgspec.field(default_factory=dict)
    """By seat, its moves whose completion had no answer in the form that the template asks for. Seats whose
    completions were not judged are not in it."""
    finish_reasons: tuple[str | None, ...] = ()
    """The end of the model's answer behind each of ``actions``: ``stop``, ``length`` (cut at the limit),
    or what an endpoint calls it; ``None``: no model answered. Empty: no model did in this game, or it was
    recorded before there was this field."""
    no_answers: dict[int, int] = msgspec.field(default_factory=dict)
    """By seat, the requests that its endpoint gave no answer to, so that it was asked again; seats without
    any are not in it."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. ``completion_token_ids`` and ``logprobs`` have the same length."""

    turn_index: int
    """0-based within this trajectory."""
    game_turn: int
    """0-based among all the game's moves."""
    observation: str
    """The text the environment showed this seat."""
    prompt: str
    """The observation in the model's template, as text."""
    prompt_token_ids: PackedTokens
    """int32[prompt], exactly what the engine was given."""
    completion: str
    """The text the model wrote."""
    completion_token_ids: PackedTokens
    """int32[completion], exactly what the engine sampled, end token included if it was sampled."""
    logprobs: PackedFloats
    """float32[completion], nats, of the distribution sampled from (temperature and top-p applied)."""
    finish_reason: str
    """``stop`` or ``length`` (cut at the token limit)."""
    action: str
    """Extracted from the completion and passed to the environment."""
    valid: bool = True
    """Whether the environment accepted the action."""
    format_feedback: dict[str, bool] = msgspec.field(default_factory=dict)
    """Findings of the action extraction, e.g. ``{"correct_answer_format": true}``."""
    step_info: dict[str, Any] = msgspec.field(default_factory=dict)
    """The environment's info for this step."""
    policy_version: int | None = None
    """The learner update whose weights sampled this turn; ``None`` for a fixed opponent."""
    latency_ms: float = 0.0
    """Milliseconds from request to completion."""


class Trajectory(Event, frozen=True, kw_only=True, tag="trajectory"):
    """One seat's view of one finished game. Natural key: game id, seat (``event_id`` is its id)."""

    TOPIC = "trajectories"

    game_id: str
    """The game."""
    game_index: int
    """0, 1, 2, … within run and split."""
    split: str
    """``train``, ``eval``, ``human``: a person plays, or ``imported``: it was played elsewhere."""
    env_id: str
    """TextArena environment."""
    seed: Int64
    """The game's seed."""
    seat: int
    """0-based player number in the environment."""
    model_uid: str
    """Checkpoint uid or name of a fixed opponent."""
    policy_version: int | None = None
    """Learner update that made the checkpoint; 0 is the initial policy, ``None`` for a fixed opponent."""
    role: str | None = None
    """The environment's name for the seat (``Mafia``, ``Proposer``); ``None``: it has none."""
    template: str | None = None
    """Prompt template."""
    trained: bool = False
    """Whether the reward processor turns this trajectory into steps."""
    trained_seats: tuple[int, ...] = ()
    """All seats of this game that are trained on; their trajectories follow one another in the log."""
    opponents: tuple[str, ...] = ()
    """Model uids of the other seats, by seat."""
    turns: tuple[Turn, ...]
    """The decisions of this seat, in order."""
    rewards: dict[int, float]
    """Every seat's final reward: the vector the final reward transformations see."""
    reward: float
    """This seat's final reward."""
    reason: str
    """The end of the game, as in the game outcome."""
    invalid_move: bool = False
    """Whether this seat's invalid move ended the game."""
    opponent_invalid: bool = False
    """Whether another seat's invalid move ended the game."""
    temperature: float = 1.0
    """Sampling temperature."""
    top_p: float = 1.0
    """Nucleus sampling threshold."""
    roles: dict[int, str] = msgspec.field(default_factory=dict)
    """The environment's name for each seat that has one."""
    position: GamePosition | None = None
    """The position where the game began; ``None``: at the beginning."""

    @property
    def key(self) -> str:
        return f"{self.run_id}/{self.env_id}"

    @property
    def trajectory_id(self) -> str:
        """Alias of ``event_id``: the id other events refer to."""
        return self.event_id


class StepTexts(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of one turn, as the trajectory has them."""

    observation: str
    """The text the environment showed this seat."""
    completion: str
    """The text the model wrote."""
    action: str
    """Extracted from the completion and passed to the environment."""
    valid: bool = True
    """Whether the environment accepted the action."""
    format_feedback: dict[str, bool] = msgspec.field(default_factory=dict)
    """Findings of the action extraction."""
    step_info: dict[str, Any] = msgspec.field(default_factory=dict)
    """The environment's info for this step."""


class Step(Event, frozen=True, kw_only=True, tag="step"):
    """One trainable turn. Natural key: trajectory id, turn index (``event_id`` is its id).

    ``completion_token_ids`` and ``logprobs`` have the same length.
    """

    TOPIC = "steps"

    trajectory_id: str
    """The trajectory it is a turn of."""
    game_id: str
    """The game."""
    game_index: int
    """0, 1, 2, … within run and split."""
    env_id: str
    """TextArena environment."""
    seat: int
    """0-based player number in the environment."""
    turn_index: int
    """0-based within the trajectory."""
    num_turns: int
    """Turns of the trajectory: ``turn_index == num_turns - 1`` is its last."""
    model_uid: str
    """The policy that sampled it."""
    policy_version: int
    """Learner update that made that policy; 0 is the initial policy."""
    prompt_token_ids: PackedTokens
    """int32[prompt], exactly what the engine was given."""
    completion_token_ids: PackedTokens
    """int32[completion], exactly what the engine sampled."""
    logprobs: PackedFloats
    """float32[completion], nats, of the distribution sampled from."""
    truncated: bool = False
    """Whether the completion was cut at the token limit."""
    temperature: float = 1.0
    """Temperature the behaviour log-probabilities were sampled at; the learner applies the same."""
    raw_reward: float
    """The environment's final reward for this seat."""
    final_reward: float
    """After the final reward transformations."""
    reward: float
    """After the step reward transformations: what the learner sees, before sampling transformations."""
    texts: StepTexts | None = None
    """The texts of the turn; ``None`` unless the run's own code may ask for it (``rewards.step_texts``)."""
    cut_off: bool | None = None
    """Of a completion that was cut: whether no action was found in it, so that the learner takes it for
    truncated. ``None``: it was not cut, or was recorded before players said so; then ``truncated`` counts."""
    branch: str | None = None
    """Of the first answer to a position that several games begin from: that position, as ``GAME:TURN``."""
    pair: str | None = None
    """The preference pair that it is one answer of, the chosen one if ``reward`` is positive; ``None``: of
    none."""

    @property
    def key(self) -> str:
        return self.game_id

    @property
    def step_id(self) -> str:
        """Alias of ``event_id``: the id learner updates name."""
        return self.event_id


class Rating(Event, frozen=True, kw_only=True, tag="rating"):
    """A model's rating after one game. Natural key: game id, environment, model."""

    TOPIC = "ratings"

    env_id: str
    """An environment, or ``*`` for all together."""
    model_uid: str
    """The rated model."""
    mu: float
    """Mean skill, points of the rating system."""
    sigma: float
    """Standard deviation of the skill, points of the rating system."""
    games: int
    """Rated games so far, this one included."""
    game_id: str
    """The game that led to this rating."""

    @property
    def key(self) -> str:
        return f"{self.run_id}/{self.env_id}/{self.model_uid}"


def are_partners(one: Seat | SeatResult, other: Seat | SeatResult) -> bool:
    """Tell whether two seats win and lose together; a seat is a partner of itself."""
    return one.seat == other.seat or (one.team is not None and one.team == other.team)
