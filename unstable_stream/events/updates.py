"""Topic ``learner-updates``: written by the learner; read by the archive, the live view and the collector."""

import msgspec

from unstable_stream.events.envelope import Event


class DroppedStep(msgspec.Struct, frozen=True, array_like=True):
    """A step that will never be trained on."""

    step_id: str
    """The step."""
    reason: str
    """``stale`` or ``overflow`` from the buffer; ``truncated``, or another word, from the algorithm;
    ``expired``: the log deleted it before an update could use it; ``unreadable``: its trajectory could not
    be decoded and is on ``dead-letters``, so the step was never made."""


class LearnerUpdate(Event, frozen=True, kw_only=True, tag="learner-update"):
    """One optimizer iteration and everything it consumed. Natural key: update number, and the model's name if
    it has one.

    Every step is named exactly once, in an update or a :class:`StepsDropped`: trained or dropped.
    """

    TOPIC = "learner-updates"

    update: int
    """Number of the update; 1 for the first."""
    step_ids: tuple[str, ...]
    """The steps trained on, in batch order."""
    dropped: tuple[DroppedStep, ...] = ()
    """Steps dropped since the previous update."""
    loss: float = 0.0
    """The algorithm's loss."""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    """Name to value: gradient norm, learning rate, entropy, tokens, …; see docs/metrics.md."""
    model_uid: str | None = None
    """The checkpoint this update saved; ``None``: it saved none."""
    positions: dict[str, int] = msgspec.field(default_factory=dict)
    """``topic[partition]`` to the next offset: all that had been read when the batch was drawn."""
    duration_ms: float = 0.0
    """Milliseconds of the update."""
    model: str | None = None
    """Name of the trained model, which counts its own updates; ``None``: the run trains one."""
    resumption: int | None = None
    """The resumption with whose configuration it was made; 0: that of the start, ``None``: not known, as in
    updates of earlier versions."""
    computed_with: dict[str, str] = msgspec.field(default_factory=dict)
    """Versions, device, threads, number format and learners. Where all are the same, an update repeated on a
    CPU is equal bit by bit. Empty: not known."""


class StepsDropped(Event, frozen=True, kw_only=True, tag="steps-dropped"):
    """Steps dropped between two updates: found lost by a learner that was started again, or too stale, all of
    them. Natural key: update, first step id.

    It is an event of its own, because the next update may need more steps than there are, and the collector
    starts games for them only if it knows that these are no longer pending.
    """

    TOPIC = "learner-updates"

    update: int
    """The next update of the run: it draws without them."""
    dropped: tuple[DroppedStep, ...]
    """The steps, by id; at least one."""
    model: str | None = None
    """Name of the trained model whose steps they were; ``None``: the run trains one."""


class CollapseWarning(Event, frozen=True, kw_only=True, tag="collapse-warning"):
    """The policy shows a sign of collapse. Natural key: update, signal, and the model's name if it has one.
    Appended together with the update.
    """

    TOPIC = "learner-updates"

    update: int
    """The update after which the sign was seen."""
    began: int
    """The first update that may have caused it."""
    fork_at: int
    """The newest update before it whose checkpoint the run has: a fork there begins before the collapse."""
    rule: str
    """``certain``, ``unparsed``, ``illegal``, ``result`` or ``divergence``; see docs/collapse.md."""
    signal: str
    """The metric of the updates that the rule looked at."""
    value: float
    """Its value when the sign was seen."""
    reference: float
    """The value that it was compared with: a bound, or the best so far."""
    text: str = ""
    """One sentence about it."""
    action: str = "warn"
    """The run's answer: ``warn`` nothing else, ``stop`` it stopped, ``lower-step`` it halved its step."""
    learning_rate_factor: float = 1.0
    """All later updates of the model multiply their learning rate by this, until the next warning."""
    model: str | None = None
    """Name of the trained model; ``None``: the run trains one."""
