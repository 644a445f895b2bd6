"""The step buffer: a bounded fold of ``steps`` and ``learner-updates`` that gives out training batches.

Steps arrive from several partitions in an order that nobody controls. So every choice here is a function of
the *set* of folded steps, never of their order of arrival. Each step has a hash priority computed from (seed,
stream, step id), and selection goes by rank. Therefore the steps kept at overflow are a uniform sample (the k
extreme hashes of a set; Cohen & Kaplan, "Summarizing data using bottom-k sketches", PODC 2007). The batch of
an update is a uniform draw without replacement, which anyone can recompute from the log.

Each update has priorities of its own, for its draw and for the overflow before it. With the same ones for all
updates, which runs recorded earlier have, a step with a high priority would survive every overflow: the more
arrives, the more of what is kept is old.

**Rebuilding after a restart:** first :meth:`StepBuffer.apply` every recorded update, then
:meth:`~StepBuffer.add` the steps again. In this order the buffer recognises steps that were used before, and
has the same free capacity as the live process had.

**Recognising duplicates** must not depend on a window: after a restart the updates come before the steps that
they used, even very old ones. So the buffer remembers every id ever used. A buffer that is given outcomes
(:meth:`StepBuffer.finish_game`) keeps the ids of games that are not done with, and a few ranges for all other
games (:class:`~unstable_stream.events.used_ids.UsedIds`). Otherwise each id costs 16 bytes in sorted arrays:
ten million steps 160 MB, twice that while arrays are merged (a set of id strings: 1.5 GB).
"""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unstable_stream.errors import ConfigError, LearnerError
from unstable_stream.events import DroppedStep, LearnerUpdate, Step
from unstable_stream.events.id_sets import DIGEST_BYTES, digest
from unstable_stream.events.seeds import split_mix, split_mix_array
from unstable_stream.events.used_ids import UsedIds
from unstable_stream.extensions import KINDS, Reference, Spec, build
from unstable_stream.extensions.build import refuse

Ranking: TypeAlias = Callable[[Step, int, int], float]
"""A user's own strategy: a function from ``(step, update, seed)`` to a rank. A batch takes the lowest ranks;
at overflow (``update`` 0) the highest are dropped; equal ranks go by step id. It must depend only on its
arguments, because ``verify`` draws the batches again.
"""

_Mask = NDArray[np.intp]
_Words = NDArray[np.uint64]

_OVERFLOW_STREAM: Final = 2**63  # plus the number of the next update: no batch shares these priorities
_ONE_OVERFLOW_STREAM: Final = 0  # updates count from 1
_MIN_CAPACITY: Final = 1024

_COLUMNS: Final = np.dtype(
    [
        ("hi", "<u8"),
        ("lo", "<u8"),
        ("policy_version", "<i8"),
        ("game_index", "<i8"),
        ("seat", "<i8"),
        ("turn_index", "<i8"),
    ]
)
_ORDER: Final = ("policy_version", "game_index", "seat", "turn_index")
_order: Final = attrgetter(*_ORDER)


@dataclass(frozen=True, slots=True)
class Prioritised:
    """Draw steps with a large reward, good or bad, more often: without replacement, by weights.

    The weight of a step is ``(|reward| + floor) ** exponent``, the proportional priority of Schaul et al.,
    "Prioritized Experience Replay", arXiv:1511.05952, section 3.3, with the reward after the step
    transformations in place of the error of a critic. A batch holds the steps with the smallest
    ``-log(u) / weight``, ``u`` being the step's hash as a uniform number: a weighted draw without replacement
    (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Information Processing Letters 97,
    2006). At overflow the largest are dropped.

    No importance weights correct for the choice: a step is trained on at most once, and those that are seldom
    drawn grow stale. So the gradient is that of a distribution with more decisive turns.

    Args:
        exponent: 0: uniform; 1: in proportion.
        floor: added to every absolute reward, so that a reward of 0 can be drawn.

    Raises:
        ConfigError: the exponent is negative, or the floor is not positive.
    """

    exponent: float = 0.6
    floor: float = 0.01

    def __post_init__(self) -> None:
        if not (0 <= self.exponent < math.inf and 0 < self.floor < math.inf):
            raise ConfigError(
                f"prioritised(exponent={self.exponent}, floor={self.floor}): expected an exponent of 0 or "
                "more and a floor above 0"
            )

    def keys(self, steps: Sequence[Step], priorities: "_Words") -> "NDArray[np.float64]":
        """Return the keys of steps with these uniform 64-bit priorities; the smallest are drawn."""
        rewards = np.fromiter((step.reward for step in steps), dtype=np.float64, count=len(steps))
        weights = (np.abs(rewards) + self.floor) ** self.exponent
        # The upper 53 bits and a half: never 0 and never 1.
        uniform = ((priorities >> np.uint64(11)) + 0.5) * 2.0**-53
        keys: NDArray[np.float64] = -np.log(uniform) / weights
        return keys


def paired(step: Step, update: int, seed: int) -> float:
    """Rank steps uniformly, those of a preference pair alike: a batch of an even size has whole pairs."""
    key = digest(f"{step.pair or step.event_id}/{update}/{seed}".encode())
    return int.from_bytes(key[:8], "big") / 2**64


@dataclass(frozen=True, slots=True)
class Batch:
    """The steps that an update trains on, and those dropped since the batch before."""

    steps: tuple[Step, ...]
    """The steps in batch order: by draw priority (``random``, ``prioritised``) or oldest first (``fifo``)."""
    dropped: tuple[DroppedStep, ...]
    """Overflow and stale steps, by reason, then id."""


class StepBuffer:
    """Hold at most ``max_buffer_size`` pending steps and give out batches without replacement.

    Args:
        max_buffer_size: the most steps kept; steps beyond it are dropped as ``overflow``.
        strategy: ``random``: what is kept at overflow and what a batch takes are uniform draws; ``fifo``:
            batches take the oldest steps by (policy version, game index, seat, turn, id) and overflow drops
            them;
            ``prioritised``: steps with a large reward are drawn more often (:class:`Prioritised`); or a
            reference to an extension, a :data:`Ranking`.
        seed: together with the update number and the step ids, it decides every choice of ``random`` and
            ``prioritised``.
        max_staleness: the most policy versions between a step and fully on-policy training, in which update
            ``u`` trains on version ``u - 1``; ``None``: no limit.
        overflow_draws: the priorities of steps at overflow in ``random`` and ``prioritised`` are drawn for
            ``each-update``, or ``once`` for all.
        by_game: whether outcomes will be given (:meth:`finish_game`), so that memory does not grow with the
            number of games.

    Raises:
        LearnerError: the size is below 1, or the staleness is negative.
        ConfigError: the strategy is unknown or cannot be loaded.
    """

    def __init__(
        self,
        max_buffer_size: int,
        strategy: Spec = "random",
        seed: int = 0,
        max_staleness: int | None = None,
        *,
        overflow_draws: Literal["each-update", "once"] = "each-update",
        by_game: bool = False,
    ) -> None:
        if max_buffer_size < 1:
            raise LearnerError(f"max_buffer_size is {max_buffer_size}; expected at least 1")
        if max_staleness is not None and max_staleness < 0:
            raise LearnerError(f"max_staleness is {max_staleness}; expected 0 or more, or None for no limit")
        self._max_size = max_buffer_size
        self._ranking = build_ranking(strategy)
        self._uniform = Reference.parse(strategy).target == "random"
        self._seed = seed
        self._max_staleness = max_staleness
        self._draws_once = overflow_draws == "once"
        self._steps: list[Step] = []
        self._columns = np.empty(_MIN_CAPACITY, dtype=_COLUMNS)
        self._slot_of: dict[bytes, int] = {}
        self._overflow: dict[bytes, Step] = {}
        self._used = UsedIds(by_game=by_game)

    def add(self, step: Step) -> None:
        """Fold one step; ignore a step that is already pending, used or dropped."""
        self.extend((step,))

    def extend(self, steps: Iterable[Step]) -> None:
        """Fold many steps at once: the result is the same as adding each, but several times faster."""
        fresh: dict[bytes, Step] = {}
        slot_of, overflow = self._slot_of, self._overflow
        for step in steps:
            key = digest(step.event_id.encode())
            if key not in slot_of and key not in overflow and key not in fresh:
                fresh[key] = step
        for key in self._used.among(list(fresh), [step.game_index for step in fresh.values()]):
            del fresh[key]
        if not fresh:
            return
        start = len(self._steps)
        self._reserve(start + len(fresh))
        rows = self._columns[start : start + len(fresh)]
        words = np.frombuffer(b"".join(fresh), dtype="<u8").reshape(-1, 2)
        rows["hi"] = words[:, 0]
        rows["lo"] = words[:, 1]
        for name, column in zip(_ORDER, zip(*map(_order, fresh.values()), strict=True), strict=True):
            rows[name] = column
        self._slot_of.update(zip(fresh, range(start, start + len(fresh)), strict=True))
        self._steps.extend(fresh.values())

    def get_batch(self, batch_size: int, update: int) -> Batch:
        """Remove and return the batch of ``update``: ``batch_size`` steps, or all available ones if there are
        fewer.

        Order of decisions: overflow is dropped, then stale steps, then the batch is drawn from the rest.
        """
        if batch_size < 1 or update < 1:
            raise LearnerError(
                f"a batch of {batch_size} for update {update} was asked for; both count from 1"
            )
        dropped = self.drop(update)
        chosen = self._first(batch_size, update)
        steps = tuple(self._steps[slot] for slot in chosen.tolist())
        self._use(chosen)
        return Batch(steps, dropped)

    def drop(self, update: int) -> tuple[DroppedStep, ...]:
        """Remove and return the steps that no batch from ``update`` on can have, by reason, then id."""
        self._settle_overflow(update)
        dropped = [DroppedStep(step.event_id, "overflow") for step in self._overflow.values()]
        self._used.add((key, step.game_index) for key, step in self._overflow.items())
        self._overflow.clear()
        stale = np.flatnonzero(self._versions() < self._oldest_allowed(update))
        dropped += [DroppedStep(self._steps[slot].event_id, "stale") for slot in stale.tolist()]
        self._use(stale)
        return tuple(sorted(dropped, key=lambda drop: (drop.reason, drop.step_id)))

    def apply(self, update: LearnerUpdate) -> None:
        """Fold a recorded update: its steps, trained or dropped, are no longer pending, even if they arrive
        later.

        Applying an update twice, or an update whose batch this buffer gave out, changes nothing.
        """
        self.forget([*update.step_ids, *(drop.step_id for drop in update.dropped)])

    def forget(self, step_ids: Iterable[str]) -> None:
        """Fold steps that were used or dropped: they are no longer pending, even if they arrive later."""
        digests = [_digest(step_id) for step_id in step_ids]
        slots = [self._slot_of[key] for key in digests if key in self._slot_of]
        self._use(np.unique(np.array(slots, dtype=np.intp)))
        for key in digests:
            evicted = self._overflow.pop(key, None)
            if evicted is not None:
                self._used.add([(key, evicted.game_index)])
        self._used.add_unknown(digests)

    def restore_used(self, used: UsedIds) -> None:
        """Go on with the steps that an earlier buffer of the run had used; this one must be new."""
        self._used = used

    def finish_game(self, game_index: int, step_ids: Iterable[str]) -> None:
        """Take in that a game gives just these steps: when all are used, it needs no memory."""
        self._used.promise(game_index, [_digest(step_id) for step_id in step_ids])

    def used(self, game_index: int, step_ids: Sequence[str]) -> set[str]:
        """Return which of these steps of a game were given out, dropped, or folded in as such."""
        names = {_digest(step_id): step_id for step_id in step_ids}
        return {names[key] for key in self._used.among(list(names), [game_index] * len(names))}

    def not_used(self, step_ids: Sequence[str]) -> list[str]:
        """Return those of these steps that were folded as pending, or never: their games are not known."""
        names = {_digest(step_id): step_id for step_id in step_ids}
        known = self._used.among_unknown(list(names))
        return [step_id for key, step_id in names.items() if key not in known]

    def pending(self) -> list[Step]:
        """Return the steps that no batch has used, including those that the next batch drops."""
        return [*self._steps, *self._overflow.values()]

    @property
    def used_ids(self) -> UsedIds:
        """The steps that were used."""
        return self._used

    def size(self) -> int:
        """Return the number of pending steps, including stale ones: at most ``max_buffer_size``."""
        return min(len(self._steps), self._max_size)

    def available(self, update: int) -> int:
        """Return the number of steps that a batch for ``update`` can be drawn from: pending and not stale."""
        self._settle_overflow(update)
        return int(np.count_nonzero(self._versions() >= self._oldest_allowed(update)))

    def _use(self, slots: _Mask) -> None:
        self._used.add((key, step.game_index) for key, step in self._remove(slots))

    def _versions(self) -> NDArray[np.int64]:
        versions: NDArray[np.int64] = self._columns["policy_version"][: len(self._steps)]
        return versions

    def _oldest_allowed(self, update: int) -> int:
        if self._max_staleness is None:
            return int(np.iinfo(np.int64).min)
        return update - 1 - self._max_staleness

    def _first(self, count: int, update: int, *, overflow: bool = False) -> _Mask:
        """Return the slots of the first ``count`` steps of the batch of ``update``, or of the overflow before
        it, in order.
        """
        rows = self._columns[: len(self._steps)]
        stream = update
        if overflow:
            # Until the update is drawn, the time of eviction does not matter: the lowest ranks of a union
            # stay the same.
            stream = _ONE_OVERFLOW_STREAM if self._draws_once else _OVERFLOW_STREAM + update
        if self._ranking is not None:
            if isinstance(self._ranking, Prioritised):
                priorities = _priorities(rows["hi"], rows["lo"], self._seed, stream)
                ranks = self._ranking.keys(self._steps, priorities)
            else:
                ranks = self._ranks(self._ranking, 0 if overflow else update)
            return _lowest([-ranks if overflow else ranks, rows["hi"], rows["lo"]], count)
        if self._uniform:
            priority = _priorities(rows["hi"], rows["lo"], self._seed, stream)
            return _lowest([priority, rows["hi"], rows["lo"]], count)
        names = ("policy_version", "game_index", "seat", "turn_index", "hi", "lo")
        return _lowest([rows[name] for name in names], count)

    def _ranks(self, ranking: Ranking, update: int) -> NDArray[np.float64]:
        ranks = np.empty(len(self._steps))
        for slot, step in enumerate(self._steps):
            rank = ranking(step, update, self._seed)
            if not isinstance(rank, (int, float)) or not math.isfinite(rank):
                raise LearnerError(
                    f"the buffer strategy ranked step {step.event_id} at {rank!r}; expected a finite number"
                )
            ranks[slot] = rank
        return ranks

    def _settle_overflow(self, update: int) -> None:
        excess = len(self._steps) - self._max_size
        if excess <= 0:
            return
        victims = self._first(excess, update, overflow=True)
        self._overflow.update(self._remove(victims))

    def _remove(self, slots: _Mask) -> list[tuple[bytes, Step]]:
        """Remove steps: move the last step into each freed slot, O(1) a step. Return digests and steps,
        highest slot first.
        """
        removed = []
        for slot in np.sort(slots)[
            ::-1
        ].tolist():  # descending: the last slot is never one that must still be removed
            last = len(self._steps) - 1
            key, step = _row_digest(self._columns[slot]), self._steps[slot]
            if slot != last:
                self._columns[slot] = self._columns[last]
                self._steps[slot] = self._steps[last]
                self._slot_of[_row_digest(self._columns[slot])] = slot
            self._steps.pop()
            del self._slot_of[key]
            removed.append((key, step))
        return removed

    def _reserve(self, count: int) -> None:
        if count > len(self._columns):
            grown = np.empty(max(count, 2 * len(self._columns)), dtype=_COLUMNS)
            grown[: len(self._steps)] = self._columns[: len(self._steps)]
            self._columns = grown


def build_ranking(strategy: Spec, where: str = "buffer.strategy") -> Ranking | Prioritised | None:
    """Return the user's own strategy, or ``prioritised``; ``None`` for the other built-in ones.

    Raises:
        ConfigError: it is no function ``(step, update, seed)`` and has no method ``rank``.
    """
    kind = KINDS["buffer_strategy"]
    reference = Reference.parse(strategy, where)
    if reference.target in kind.built_in and reference.target not in ("prioritised", "paired"):
        if reference.arguments:
            raise refuse(kind, reference, where, f"takes no arguments {sorted(reference.arguments)}")
        return None
    found = build(kind, strategy, where)
    if isinstance(found, Prioritised):
        return found
    ranking: Ranking = getattr(found, "rank", found)
    try:
        inspect.signature(ranking).bind(None, 1, 0)
    except (TypeError, ValueError) as error:
        said = f"cannot be called with (step, update, seed): {error}"
        raise refuse(kind, reference, where, said) from error
    return ranking


def _digest(step_id: str) -> bytes:
    return digest(step_id.encode())


def _row_digest(row: Any) -> bytes:  # one structured row: numpy has no type for it
    return bytes(row.tobytes()[:DIGEST_BYTES])


def _lowest(keys: Sequence[NDArray[Any]], count: int) -> _Mask:
    """Return the indices of the ``count`` smallest rows by ``keys`` (first key first), in order."""
    first = keys[0]
    candidates: _Mask = np.arange(len(first))
    if count < len(first):
        candidates = np.flatnonzero(first <= np.partition(first, count - 1)[count - 1])
    order: _Mask = np.lexsort([key[candidates] for key in reversed(keys)])
    chosen: _Mask = candidates[order[:count]]
    return chosen


def _priorities(hi: _Words, lo: _Words, seed: int, stream: int) -> _Words:
    """Hash each 128-bit digest with (seed, stream) to a uniform 64-bit priority."""
    key = split_mix((split_mix(seed) + stream) % 2**64)
    return split_mix_array(split_mix_array(hi ^ np.uint64(key)) ^ lo)
