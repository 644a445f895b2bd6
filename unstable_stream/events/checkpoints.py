"""Topic ``checkpoints``: written by the learner and the collector; read by the collector and the archive.

Weights never ride on a topic: the event says where they are and how to recognise them.
"""

import re
from typing import Any, Final

import msgspec

from unstable_stream.events.arrays import PackedFloats, PackedTokens
from unstable_stream.events.envelope import Event, Int64

_UID: Final = re.compile(r"ckpt-(?:(?P<model>[A-Za-z]\w*)-)?\d+", re.ASCII)


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
