"""Prove an adapter before it plays: its file is the recorded one, and the engine computes as the learner.

Engines that quietly answer like the base model, or with another adapter's weights, are the commonest fault of
LoRA serving, and no game shows it. So every checkpoint carries a probe: a few sequences with the learner's
log-probabilities with and without the adapter. An engine scores them each time that it loads the adapter.
"""

import math
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from unstable_stream.errors import AdapterError, EngineError
from unstable_stream.events import AdapterProbe, ProbeSequence, unpack_floats, unpack_tokens
from unstable_stream.inference.adapter_files import weights_sha256
from unstable_stream.inference.engine import Adapter, AdapterResult

_TOLERANCES: Final = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.2}
"""Nats, of the root mean square over the probe's tokens, by the coarser type of learner and engine.

Measured on ordinary text: two implementations in float32 differ by less than 0.001 (transformers, vLLM on a
CPU); SmolLM2-135M against float32 by 0.007 in float16, 0.053 in bfloat16 and 0.040 under autocast. The
tolerances are about four times that and more, because larger models round more often. The mean square decides
and not the largest difference, which has a long tail under rounding noise. An adapter that changes much makes
large logits, which round by more: from ``_FAR`` on the tolerance is a part of the distance to the base model,
in bfloat16 a third. In runs of SmolLM2-135M whose adapters were 1.3 to 3.5 nats away, engine and learner
differed by up to 0.16, and the learner in bfloat16 from itself in float32 by up to 0.29.
"""
_FAR: Final = 0.6
"""Nats, root mean square: the distance to the base model from which on an adapter changes much."""
_ROUNDING: Final = 0.25
"""The part of a tolerance that rounding was measured to take: base models that are nearer differ by noise."""
_NEARER: Final = 0.5
"""The least part of the way from base model to adapter at which an engine is nearer the adapter."""


def proof_tolerance(learner_dtype: str, engine_dtype: str) -> float:
    """Return the largest root mean square difference, in nats, that still proves an adapter close to its base
    model.
    """
    coarsest = max(_TOLERANCES.values())
    return max(_TOLERANCES.get(dtype, coarsest) for dtype in (learner_dtype, engine_dtype))


def probe_tokens(probe: AdapterProbe) -> list[tuple[list[int], list[int]]]:
    """Return the token ids of a probe's prompts and completions."""
    return [
        (unpack_tokens(each.prompt_token_ids).tolist(), unpack_tokens(each.completion_token_ids).tolist())
        for each in probe.sequences
    ]


class AdapterProver:
    """One engine's checks of adapters, and what came of them until somebody asks."""

    def __init__(self, dtype: str) -> None:
        """``dtype``: what the engine computes in, such as ``bfloat16``."""
        self._dtype = dtype
        self._results: list[AdapterResult] = []

    def take(self) -> list[AdapterResult]:
        """Return the results since the last call."""
        taken = self._results[:]
        del self._results[: len(taken)]
        return taken

    def check_file(self, adapter: Adapter) -> str:
        """Compare the weight file with the recorded digest, if there is one, and return its digest.

        Raises:
            AdapterError: the file was changed after it was recorded.
            EngineError: it cannot be read.
        """
        try:
            found = weights_sha256(adapter)
        except OSError as error:
            raise EngineError(
                f"adapter {adapter.uid!r} cannot be read from {adapter.path}: {error}"
            ) from error
        if adapter.sha256 not in (None, found):
            self._note(adapter, "failed")
            raise AdapterError(
                f"adapter {adapter.uid!r}: the weights at {adapter.path} were changed after they were "
                f"recorded: their sha256 is {found}, the checkpoint's {adapter.sha256}; no game is played "
                "with them. Put the file back, or fork the run at an earlier checkpoint"
            )
        return found

    def without_probe(self, adapter: Adapter) -> None:
        """Record that an adapter plays unproven."""
        self._note(adapter, "unproven")

    def judge(
        self, adapter: Adapter, probe: AdapterProbe, found: Sequence[Sequence[float]], took_s: float
    ) -> None:
        """Compare the engine's log-probabilities with the learner's, and record the result.

        Args:
            adapter: the adapter that the engine has loaded.
            probe: its probe.
            found: the engine's log-probabilities of the completion tokens, by sequence.
            took_s: seconds that the engine took to score.

        Raises:
            AdapterError: they differ by more than the tolerance.
        """
        engine = np.concatenate([np.asarray(scores, dtype=np.float64) for scores in found])
        learner = _joined(probe.sequences, "logprobs")
        base = _joined(probe.sequences, "base_logprobs")
        difference = _rms(engine - learner)
        largest = float(np.abs(engine - learner).max())
        apart = _rms(learner - base)
        tolerance = proof_tolerance(probe.dtype, self._dtype) * max(1.0, apart / _FAR)
        plays = difference <= tolerance  # false for what is not a number
        distinct = apart > _ROUNDING * tolerance and _way(base, learner, engine) >= _NEARER
        self._note(
            adapter,
            "failed" if not plays else "proven" if distinct else "indistinct",
            difference=_finite(difference),
            largest_difference=_finite(largest),
            tolerance=tolerance,
            base_difference=_finite(apart),
            duration_ms=took_s * 1000,
        )
        if plays:
            return
        like_base = apart > tolerance and _rms(engine - base) <= tolerance
        reason = (
            "answers like the base model, as if it had no adapter"
            if like_base
            else "answers like another adapter, or the adapter is damaged"
        )
        raise AdapterError(
            f"adapter {adapter.uid!r} at {adapter.path}: the engine {reason}. Its log-probabilities of the "
            f"checkpoint's probe differ from the learner's by {difference:.2g} nats (root mean square; the "
            f"largest by {largest:.2g}), expected at most {tolerance:.2g} ({probe.dtype} in the learner, "
            f"{self._dtype} in the engine); no game is played with it, and the engine must be started anew"
        )

    def _note(self, adapter: Adapter, result: str, **numbers: Any) -> None:
        at_ms = time.time_ns() // 1_000_000
        self._results.append(AdapterResult(adapter.uid, result, adapter.sha256, at_ms, **numbers))


def _joined(sequences: Sequence[ProbeSequence], field: str) -> NDArray[np.float64]:
    return np.concatenate([unpack_floats(getattr(s, field)) for s in sequences]).astype(np.float64)


def _way(start: NDArray[np.float64], end: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    """Return how far ``found`` lies on the straight way: 0 at ``start``, 1 at ``end``."""
    way = end - start
    return float((found - start) @ way / (way @ way)) if way.any() else 0.0


def _rms(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
