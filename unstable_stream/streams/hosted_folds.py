"""The folds of one host: which records are folded, by which processor, and which runs are set aside."""

import hashlib
from collections.abc import Collection, Sequence

import msgspec

from unstable_stream.errors import (
    ConfigError,
    EventError,
    PartitionsChangedError,
    ServiceError,
)
from unstable_stream.events import Event
from unstable_stream.extensions import KINDS, use_of
from unstable_stream.log.port import EventLog, Positions, StoredRecord
from unstable_stream.log.records import event_from_record, source_header
from unstable_stream.log_lines import get_logger
from unstable_stream.runs.code import named_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.streams.dead_letters import DeadLetters
from unstable_stream.streams.processor import Processor, ProcessorSpec, group_of
from unstable_stream.streams.run_configs import RunDirectory

__all__ = ["HostedFolds", "digest_of"]

_log = get_logger(__name__)


def digest_of(spec: ProcessorSpec, config: RunConfig) -> str:
    """Return the digest of a run's fold; if it is equal, the same events give the same state.

    Raises:
        ConfigError: code that the configuration names cannot be loaded, or not here.
    """
    uses = [
        use_of(KINDS[kind], reference, key)
        for kind, key, reference in named_code(config)
        if kind in spec.code
    ]
    about = [spec.name, spec.version, spec.settings(config), uses]
    return hashlib.sha256(msgspec.json.encode(about)).hexdigest()


class HostedFolds:
    """Makes the folds of a host's partitions. A host of all runs sets a run aside that cannot be folded."""

    def __init__(
        self,
        log: EventLog,
        spec: ProcessorSpec,
        runs: RunDirectory,
        run_id: str | None,
    ) -> None:
        """Store the arguments; see :class:`~unstable_stream.streams.fold_sink.FoldSink`."""
        self.log = log
        self.spec = spec
        self.run_id = run_id
        self.group = group_of(spec.name, run_id)
        self.letters = DeadLetters(self.group, run_id)
        self._runs = runs
        self._source = None if run_id is None else source_header(run_id)
        self._refused: dict[str, str] = {}
        """By run, the reason why no fold of it can be made here."""

    async def decode(
        self, records: Sequence[StoredRecord]
    ) -> list[tuple[StoredRecord, Event | EventError | None]]:
        """Return each record with its event, its decoding error, or ``None`` for another run."""
        decoded = [(record, self._decode(record)) for record in records]
        await self._runs.learn({event.run_id for _, event in decoded if isinstance(event, Event)})
        return decoded

    def _decode(self, record: StoredRecord) -> Event | EventError | None:
        # The header saves decoding records of other runs. A record without the header is decoded.
        if self._source is not None and record.headers.get("ce_source", self._source) != self._source:
            return None
        try:
            event = event_from_record(record)
        except EventError as error:
            return error
        return event if self.run_id in (None, event.run_id) else None

    def fresh(self, run_id: str) -> tuple[Processor, str]:
        """Return a fresh fold of a run that :meth:`decode` has seen, and the digest of the fold.

        Raises:
            EventError: the run was never started, or this host serves all runs and cannot fold this one. Its
                records are set aside, and the other runs go on.
            ConfigError: this host serves only this run, and no processor can be made from its configuration.
            PartitionsChangedError: this host serves only this run, and its input has other partitions since.
        """
        if run_id in self._refused:
            raise EventError(self._refused[run_id])
        config = None
        try:
            config = self._runs.config(run_id)
            self._runs.check_partitions(run_id, self.spec.inputs)
            return self.spec.make(run_id, config), digest_of(self.spec, config)
        except EventError:
            raise
        except Exception as error:
            # Code that the run names raises what it likes when it is loaded and made.
            own = config is not None and self._runs_own_code(run_id)
            told = isinstance(error, ConfigError | PartitionsChangedError)
            if self.run_id is not None or not (own or told):
                raise
            text = str(error) if told else f"{type(error).__name__}: {error}"
            raise self._refuse(run_id, text) from error

    async def starts(self, run_id: str, topics: Collection[str]) -> Positions:
        """Return the offsets at which a run began, where they are recorded; elsewhere it has any record."""
        return await self._runs.starts(run_id, topics)

    def is_set_aside(self, run_id: str) -> bool:
        """Return whether no fold of a run can be made here; :meth:`fresh` has warned of it."""
        return run_id in self._refused

    def gone(self, run_id: str, reason: str) -> ServiceError | EventError:
        """Return the error to raise if the records of a run were deleted, so that it cannot be folded again.

        A host of all runs sets the run aside.
        """
        if self.run_id is not None:
            return ServiceError(f"{self.group}: {reason}")
        return self._refuse(run_id, reason)

    def failed(self, run_id: str, record: StoredRecord, error: Exception) -> str | None:
        """Return the reason to set a run aside whose fold failed; ``None``: the host must stop.

        A host of all runs goes on if the fold runs code that the run brought along: one run must not stop the
        others. Without such code the failure is a bug of this package.
        """
        if self.run_id is not None or not self._runs_own_code(run_id):
            return None
        reason = (
            f"run {run_id!r} cannot be folded by this host any more: its own code failed on {record} with "
            f"{type(error).__name__}: {error}"
        )
        _log.warning("a run's records are set aside", group=self.group, run=run_id, reason=reason)
        return reason

    def _refuse(self, run_id: str, reason: str) -> EventError:
        self._refused[run_id] = f"run {run_id!r} cannot be folded by this host: {reason}"
        _log.warning("a run's records are set aside", group=self.group, run=run_id, reason=reason)
        return EventError(self._refused[run_id])

    def _runs_own_code(self, run_id: str) -> bool:
        return any(kind in self.spec.code for kind, _, _ in named_code(self._runs.config(run_id)))
