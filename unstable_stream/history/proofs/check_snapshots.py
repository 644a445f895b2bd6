"""Compare the snapshots of a processor with a fold from the beginning.

A snapshot that differs was made by a run's own code that is no fold, or by a bug. Deleting it makes the
processor fold the run again.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from unstable_stream.history.proofs.reports import Check, Difference, differing_fields
from unstable_stream.log.port import EventLog, Positions, TopicPartition
from unstable_stream.log.saved_state import UnusableStateError
from unstable_stream.runs.history import RunStatus
from unstable_stream.services.streams.processor import KeepsState, Processor, ProcessorSpec, group_of
from unstable_stream.services.streams.snapshots import (
    POSITION,
    FoldState,
    run_name,
    scope_of,
    unpack,
)


@dataclass(frozen=True, slots=True)
class _Saved:
    scope: str
    run: FoldState


class SnapshotCheck:
    """Checks the saved states of one run and one processor while its records are folded again."""

    def __init__(self, check: Check, run_id: str, saved: dict[int, list[_Saved]]) -> None:
        """Use :meth:`read`."""
        self._check = check
        self._run_id = run_id
        self._saved = saved

    @classmethod
    async def read(
        cls,
        log: EventLog,
        check: Check,
        spec: ProcessorSpec,
        run: RunStatus,
        *,
        ends: Positions,
        trimmed: bool,
    ) -> "SnapshotCheck":
        """Read the saved states that there are now, of a host of this run and of a host of all runs.

        Args:
            log: the event log.
            check: receives the counts and differences.
            spec: the processor.
            run: the run.
            ends: the ends of the input that is folded; what was saved beyond them is not compared.
            trimmed: the beginning of the input was deleted, so nothing can be compared.
        """
        saved: dict[int, list[_Saved]] = defaultdict(list)
        (topic,) = spec.inputs
        for at, end in ends.items():
            for group in (group_of(spec.name, run.run_id), group_of(spec.name, None)):
                scope = scope_of(group, TopicPartition(topic, at.partition))
                states = await log.saved(scope, [POSITION, run_name(run.run_id)])
                packed = states.get(run_name(run.run_id))
                if packed is None or POSITION not in states:
                    continue  # without it the run is folded again
                # Only now: where nothing was saved, a run's own code need not be loaded.
                digest = spec.digest(run.first_config())
                found = None
                with contextlib.suppress(UnusableStateError):
                    found = unpack(packed, digest, end)
                if trimmed or found is None:
                    check.gone += 1
                else:
                    saved[at.partition].append(_Saved(scope, found))
        for each in saved.values():
            each.sort(key=lambda one: -one.run.position)
        return cls(check, run.run_id, saved)

    def before(self, partition: int, offset: int, processor: Processor) -> None:
        """Compare what was saved after all records below ``offset``, all of which were folded."""
        due = self._saved.get(partition)
        while due and due[-1].run.position <= offset:
            self._compare(due.pop(), processor)

    def finish(self, processors: dict[int, Processor], make: Callable[[], Processor]) -> None:
        """Compare the rest: all records have been folded. ``make`` returns one that has folded nothing."""
        for partition, due in self._saved.items():
            while due:
                self._compare(due.pop(), processors.get(partition) or make())

    def _compare(self, saved: _Saved, processor: Processor) -> None:
        if not isinstance(processor, KeepsState):
            self._check.gone += 1
            return
        self._check.compared += 1
        state = msgspec.json.encode(processor.state())
        fields = differing_fields(msgspec.json.encode(saved.run.state), state)
        if fields:
            path, recorded, recomputed = fields[0]
            more = f" in {len(fields)} fields, first" if len(fields) > 1 else ""
            self._check.differs(
                Difference(
                    f"snapshot {saved.scope} of offset {saved.run.position}",
                    self._run_id,
                    f"differs{more} from a fold from the beginning",
                    path,
                    recorded,
                    recomputed,
                )
            )
