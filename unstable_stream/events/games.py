"""Topics ``games`` and ``game-outcomes``: the decision to play a game, and its result.

``games`` is written by the collector; read by the collector itself after a restart and by the archive.
``game-outcomes`` is written by rollout workers, in one transaction with the game's trajectories; read
by the rating processor, the collector, the archive and the live view.
"""

from typing import Final

import msgspec

from unstable_stream.events.envelope import Event, Int64

ON_ENGINE: Final = frozenset({"checkpoint", "adapter"})
"""Kinds of seats whose moves the run's engine samples; the sampled tokens are recorded."""


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


class GameStarted(Event, frozen=True, kw_only=True, tag="game-started"):
    """A game was decided on: replay uses this, it never samples again. Natural key: split, game index."""

    TOPIC = "games"

    game_id: str
    """The game."""
    game_index: int
    """0, 1, 2, … within run and split."""
    split: str
    """``train``, ``eval``, or ``human``: a person plays."""
    env_id: str
    """TextArena environment."""
    seed: Int64
    """Seeds the environment, the scripted opponents and the sampling of this game."""
    seats: tuple[Seat, ...]
    """One per player, by seat."""
    evaluated_uid: str | None = None
    """The checkpoint under evaluation; ``None`` in the train split, and where opponents play each other."""


class GameAbandoned(Event, frozen=True, kw_only=True, tag="game-abandoned"):
    """A started game will never finish. Natural key: game id."""

    TOPIC = "games"

    game_id: str
    """The game."""
    game_index: int
    """0, 1, 2, … within run and split."""
    split: str
    """``train``, ``eval``, or ``human``: a person plays."""
    reason: str
    """The reason for giving it up."""


class Action(msgspec.Struct, frozen=True, array_like=True):
    """One move of a game, in order of play; with the seed it replays the game."""

    seat: int
    """The seat that moved."""
    action: str
    """Exactly what was passed to the environment."""
    valid: bool = True
    """Whether the environment accepted it."""


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
    """Moves of this seat that the environment refused."""
    turns: int = 0
    """Moves of this seat."""
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
    """``train``, ``eval``, or ``human``: a person plays."""
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


def are_partners(one: Seat | SeatResult, other: Seat | SeatResult) -> bool:
    """Tell whether two seats win and lose together; a seat is a partner of itself."""
    return one.seat == other.seat or (one.team is not None and one.team == other.team)
