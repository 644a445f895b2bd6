"""Topics ``runs``, ``checkpoints``, ``learner-updates``, ``metrics`` and ``dead-letters``: what runs do.

- ``runs`` is written by the launcher; read by every service.
- ``checkpoints`` is written by the learner and the collector; read by the collector and the archive. Weights
  never ride on a topic: the event says where they are and how to recognise them.
- ``learner-updates`` is written by the learner; read by the archive, the live view and the collector.
- ``metrics`` is written by any service; read by the archive and the live view.
- ``dead-letters``, records that a consumer could not accept, are read by the archive and a person.
"""

import re
from typing import Any, Final

import msgspec

from unstable_stream.events.arrays import PackedFloats, PackedTokens
from unstable_stream.events.envelope import Event, Int64

_UID: Final = re.compile(r"ckpt-(?:(?P<model>[A-Za-z]\w*)-)?\d+", re.ASCII)


class ExtensionUse(msgspec.Struct, frozen=True, kw_only=True):
    """Code outside of this package that a run uses, with its version or digest."""

    kind: str
    """The choice it is used for, e.g. ``algorithm``, ``template``, ``environment``."""
    target: str
    """The name in the configuration; a file has its absolute path."""
    distribution: str = ""
    """The installed package that holds it; empty for a module or file beside the run."""
    version: str = ""
    """Version of that package."""
    sha256: str = ""
    """Digest of the source file, or of the object's source if there is no file; empty: no source."""


class EnvironmentUse(msgspec.Struct, frozen=True, kw_only=True):
    """An environment that a run plays: the version of its code, and what ``check-env`` said of it."""

    env_id: str
    """The environment."""
    num_players: int = 2
    """Its seats."""
    distribution: str = ""
    """The installed package that holds it; empty for a file."""
    version: str = ""
    """Version of that package."""
    sha256: str = ""
    """Digest of its code and data; empty: no source."""
    verdict: str = ""
    """``passed``, ``warned`` or ``failed``: the verdict about this version; empty: it was not checked."""
    judged_at_ms: Int64 = 0
    """Unix time of the verdict; 0: none."""


class RunStarted(Event, frozen=True, kw_only=True, tag="run-started"):
    """A run exists, with everything needed to repeat it. Natural key: the run id."""

    TOPIC = "runs"

    name: str
    """Display name."""
    seed: Int64
    """Every seed of the run is derived from this one."""
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    """The resolved configuration, defaults filled in."""
    package_version: str = ""
    """Version of unstable_stream."""
    parent_run_id: str | None = None
    """The run this one was forked from, or whose steps it trains on; ``None``: neither."""
    parent_update: int | None = None
    """The update of the parent at which it was forked; updates are numbered on from it. A run that has
    a parent and here ``None`` begins anew, and trains on the parent's replayed steps instead of games."""
    parent_games: int = 0
    """Training games the parent had started by then; games are numbered on from there, so seeds are new."""

    extensions: tuple[ExtensionUse, ...] = ()
    """Code outside of this package that the configuration names."""

    log_id: str = ""
    """The event log that it began on; ``start_offsets`` mean nothing in another."""
    start_offsets: dict[str, tuple[Int64, ...]] = msgspec.field(default_factory=dict)
    """By topic, the end of each partition when it began: the run has no record below. A topic that is not
    named is read from its beginning."""
    environments: tuple[EnvironmentUse, ...] = ()
    """The environments of training and evaluation, as the run found them."""

    @property
    def replays(self) -> bool:
        """Whether it trains on the replayed steps of its parent and plays no games."""
        return self.parent_run_id is not None and self.parent_update is None


class RunResumed(Event, frozen=True, kw_only=True, tag="run-resumed"):
    """A stopped or crashed run goes on. Natural key: how many times it had been resumed before."""

    TOPIC = "runs"

    resumption: int
    """1 for the first resumption."""
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    """The resolved configuration the run goes on with."""
    package_version: str = ""
    """Version of unstable_stream."""
    extensions: tuple[ExtensionUse, ...] = ()
    """Code outside of this package that the configuration names, as it is now."""
    environments: tuple[EnvironmentUse, ...] = ()
    """The environments of training and evaluation, as they are now."""


class RunFinished(Event, frozen=True, kw_only=True, tag="run-finished"):
    """A run came to an end. Natural key: how many times it had been resumed."""

    TOPIC = "runs"

    outcome: str
    """``completed``, ``stopped`` (by a person) or ``failed``."""
    reason: str = ""
    """The reason for the end."""
    updates: int = 0
    """Learner updates done."""


class EnginesWanted(Event, frozen=True, kw_only=True, tag="engines-wanted"):
    """A person decided how many engines a run has from now on. Natural key: the moment."""

    TOPIC = "runs"

    engines: int | None = None
    """Their number; ``None``: as configured."""


class EnginesChanged(Event, frozen=True, kw_only=True, tag="engines-changed"):
    """An engine of a run came or went. Natural key: engine, change, moment."""

    TOPIC = "runs"

    engine: str
    """``engine-0``, …; a number that was lost is given again to the one that takes its place."""
    change: str
    """``added`` (it has loaded the model), ``removed`` (in order: it answered what it had been asked) or
    ``lost``."""
    host: str = ""
    """The machine; empty: not known."""
    reason: str = ""
    """The reason for which it came or went."""
    serving: int = 0
    """Number of engines that answer now."""
    node: str = ""
    """Ray's id of the machine; empty: not known."""


class PartChanged(Event, frozen=True, kw_only=True, tag="part-changed"):
    """The learner or a rollout worker of a run came or went; engines have an event of their own. Natural
    key: part, change, moment.
    """

    TOPIC = "runs"

    part: str
    """``learner``, ``rollout-0``, …"""
    change: str
    """``added`` (it answers), ``removed`` (in order) or ``lost``. One that is added twice without having
    been lost ended with the process that had started it."""
    host: str = ""
    """The machine; empty: not known."""
    node: str = ""
    """Ray's id of the machine; empty: not known."""
    reason: str = ""
    """The reason for which it came or went."""


def checkpoint_uid(iteration: int, model: str | None = None) -> str:
    """Return the uid of the checkpoint made by learner update ``iteration``; 0 is the initial policy.

    ``model`` is the trained model's name, if the run trains several: ``ckpt-proposer-000012``.
    """
    return f"ckpt-{model}-{iteration:06d}" if model else f"ckpt-{iteration:06d}"


def is_checkpoint_uid(name: str) -> bool:
    """Tell whether a name is in the form of :func:`checkpoint_uid`."""
    return _UID.fullmatch(name) is not None


def trained_model(model_uid: str) -> str | None:
    """Return the name of the trained model that a checkpoint is of; ``None`` for the only one of a run, and
    for the name of a fixed opponent.
    """
    found = _UID.fullmatch(model_uid)
    return None if found is None else found["model"]


class ProbeSequence(msgspec.Struct, frozen=True):
    """A prompt and completion as the learner scored them at temperature 1; the last three share a length."""

    prompt_token_ids: PackedTokens
    """Token ids of the prompt; at least one."""
    completion_token_ids: PackedTokens
    """Token ids of the completion."""
    logprobs: PackedFloats
    """Log-probability of each completion token under the adapter, nats."""
    base_logprobs: PackedFloats
    """Log-probability of each completion token under the base model without the adapter, nats; the same
    as ``logprobs`` if all parameters are trained, for then no base model is left."""


class AdapterProbe(msgspec.Struct, frozen=True):
    """A few sequences by which an engine shows that it computes with this adapter and no other policy."""

    dtype: str
    """The type the learner computed in, e.g. ``float32`` or ``bfloat16``; tolerances depend on it."""
    sequences: tuple[ProbeSequence, ...]
    """The scored sequences."""


class Checkpoint(Event, frozen=True, kw_only=True, tag="checkpoint"):
    """A saved policy. Natural key: iteration, and the model's name if it has one. Iteration 0 is the policy
    before any update.
    """

    TOPIC = "checkpoints"

    model_uid: str
    """The checkpoint."""
    iteration: int
    """Learner update that made it; 0: before any update."""
    path: str | None
    """Directory or URI of the weights; ``None``: the base model as it is."""
    sha256: str | None = None
    """Digest of the weight file; ``None``: there is no file."""
    size_bytes: Int64 = 0
    """Size of the weight file, bytes."""
    base_model: str = ""
    """The model that training began with."""
    lora: dict[str, Any] = msgspec.field(default_factory=dict)
    """LoRA configuration; empty if all parameters are trained."""
    parent_uid: str | None = None
    """The checkpoint it was trained from; ``None``: it is the first."""
    probe: AdapterProbe | None = None
    """Sequences that engines score before they play with the adapter; ``None``: there is no adapter, or the
    version that recorded it had no probes."""
    parameters: str = "lora"
    """The trained parameters: ``lora``, the weights are an adapter; ``all``, they are a whole model."""
    model: str | None = None
    """Name of the trained model; ``None``: the run trains one."""


class AdapterProof(Event, frozen=True, kw_only=True, tag="adapter-proof"):
    """One engine's proof of one adapter, made when it loads it. Natural key: engine, checkpoint, time.

    The differences are between the engine's log-probabilities of the probe's completion tokens and the
    learner's.
    """

    TOPIC = "checkpoints"

    engine: str
    """The engine, e.g. ``engine-0``."""
    model_uid: str
    """The checkpoint."""
    result: str
    """``proven``: the engine plays with it; ``indistinct``: it plays, but its scores do not tell it from the
    base model; ``failed``: the engine plays no game with it and is replaced; ``unproven``: it plays, but the
    checkpoint has no probe or the engine cannot score."""
    sha256: str | None = None
    """Digest of the weight file that the engine read; ``None``: none was recorded, so none was compared."""
    difference: float | None = None
    """Root of the mean square of the differences, nats; ``None``: nothing was scored."""
    largest_difference: float | None = None
    """The largest difference of one token, nats; ``None``: nothing was scored."""
    tolerance: float | None = None
    """The largest ``difference`` that proves the adapter, nats; ``None``: nothing was scored."""
    base_difference: float | None = None
    """``difference`` between base model and adapter as the learner recorded them; ``None``: nothing was
    scored."""
    duration_ms: float = 0.0
    """Milliseconds that the engine took to score and compare."""


UNREADABLE: Final = "unreadable"
"""The reason of the drop of a step whose trajectory cannot be decoded."""


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
    """Name to value: gradient norm, learning rate, entropy, tokens, …; see docs/reference/metrics.md."""
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
    """``unplayable``, ``certain``, ``ignoring``, ``unparsed``, ``illegal``, ``result`` or ``divergence``:
    docs/explanation/collapse.md."""
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


class Metrics(Event, frozen=True, kw_only=True, tag="metrics"):
    """Scalars one source measured at one moment. Natural key: source, sequence or time."""

    TOPIC = "metrics"

    source: str
    """The service that measured, e.g. ``engine-0``."""
    values: dict[str, float] = msgspec.field(default_factory=dict)
    """Metric name to value, e.g. ``collection-SimpleTak-v0-train/win-rate``."""
    update: int | None = None
    """The learner update the values belong to; ``None``: none."""

    @property
    def key(self) -> str:
        return self.source


class ProcessCost(Event, frozen=True, kw_only=True, tag="process-cost"):
    """One process of a run, and all that it has used since it began to work for it. Natural key: process,
    incarnation, moment.

    The numbers of an incarnation only grow: of several events the largest count. Those of all incarnations
    add up to what the run has used, but for the last minute of each that was killed.
    """

    TOPIC = "metrics"

    process: str
    """``learner``, ``engine-0``, ``rollout-0``, ``collector``, ``processors``, ``archiver``, ``launcher``, …;
    ``inline``: the one process of a run without others."""
    incarnation: str
    """One life of the process: another one after each restart and resumption."""
    wall_s: float
    """Seconds since it began."""
    cpu_s: float
    """CPU-seconds of all its threads, without its child processes."""
    parts: dict[str, float] = msgspec.field(default_factory=dict)
    """Of ``cpu_s``, what can be told apart: ``learner``, ``engine``, ``environments``, ``log``, ``archiver``,
    ``processors``, ``loading``. In none are helper threads of PyTorch and DuckDB, and the rest of the event
    loop."""
    gpu_s: float = 0.0
    """GPU-seconds: seconds for which it held a GPU, times its share of GPUs; used or idle."""
    peak_memory_bytes: Int64 | None = None
    """Most memory that was resident; ``None``: the system does not tell."""
    peak_gpu_memory_bytes: Int64 | None = None
    """Most memory of GPUs that PyTorch had allocated; ``None``: it used none in this process."""

    @property
    def key(self) -> str:
        return self.process


class RecordRejected(Event, frozen=True, kw_only=True, tag="record-rejected"):
    """A record was set aside, whole. Natural key: consumer, topic, partition, offset.

    ``run_id`` is the consumer's run, or empty if it serves all runs.
    """

    TOPIC = "dead-letters"

    consumer: str
    """The consumer group that rejected it."""
    topic: str
    """Topic of the record."""
    partition: int
    """Partition of the record."""
    offset: Int64
    """Offset of the record."""
    reason: str
    """The error class and message."""
    record_key: str = ""
    """The record's key."""
    record_value: bytes = b""
    """The record's bytes."""
    record_headers: dict[str, bytes] = msgspec.field(default_factory=dict)
    """The record's headers."""
    record_timestamp_ms: Int64 = 0
    """The record's own time, Unix milliseconds."""

    @property
    def key(self) -> str:
        return f"{self.topic}-{self.partition}"
