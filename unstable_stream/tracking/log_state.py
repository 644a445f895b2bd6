"""The state of a monitor: a fold of every record of the log into counts and latest values."""

from collections import Counter
from typing import Any, Final, TypeAlias

from unstable_stream.errors import EventError
from unstable_stream.events import (
    EVENT_TYPES,
    Event,
    GameOutcome,
    LearnerUpdate,
    Metrics,
    RecordRejected,
    RunFinished,
    RunStarted,
    StepsDropped,
)
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.records import event_from_record
from unstable_stream.runs.history import RunHistory
from unstable_stream.tracking.service_reports import ARCHIVER, LAUNCHER, read_archived, read_services

__all__ = ["Key", "MonitorState"]

Key: TypeAlias = tuple[str, ...]
"""The labels of a count or value; the first is the run."""

_DECODED: Final = frozenset({"runs", "game-outcomes", "learner-updates", "dead-letters", "metrics"})
"""The topics whose records are decoded; for other topics the headers of a record are enough."""
_MOST_RUNS: Final = 100
"""The most runs with series of their own. Beyond it, the longest silent run loses its series.
"""
_SOURCE_PREFIX: Final = b"/unstable_stream/runs/"
_TYPE_NAMES: Final = {
    f"unstable_stream.{name}.v{version}".encode(): name
    for name, event_class in EVENT_TYPES.items()
    for version in range(1, event_class.SCHEMA_VERSION + 1)
}


class MonitorState:
    """The fold. Pass it every record. It counts records, so a record delivered twice counts twice."""

    def __init__(self, most_runs: int = _MOST_RUNS) -> None:
        self.runs = RunHistory()
        self.events: Counter[Key] = Counter()
        """Records by run, topic and event type."""
        self.games: Counter[Key] = Counter()
        """Finished games by run, split and reason."""
        self.trained: Counter[Key] = Counter()
        """Trained steps by run."""
        self.dropped: Counter[Key] = Counter()
        """Dropped steps by run and reason."""
        self.tokens: Counter[Key] = Counter()
        """Trained completion tokens by run."""
        self.update: dict[Key, float] = {}
        """Number of the latest learner update by run; of several trained models that of the one behind."""
        self.progress_s: dict[Key, float] = {}
        """Unix seconds of the latest learner update, or of the run's latest start if that is later.
        """
        self.dead_letters: Counter[Key] = Counter()
        """Dead letters by run, consumer (without its run) and topic."""
        self.service_up: dict[Key, float] = {}
        """1 (up) or 0 (down) by run and service, from the launcher's latest report."""
        self.service_restarts: dict[Key, float] = {}
        """Restarts by run and service, since the run was started or resumed."""
        self.archived: dict[Key, float] = {}
        """Records that the run's archiver has stored since its start, by run."""
        self.values: dict[Key, float] = {}
        """The latest value on topic ``metrics`` by run, source and name."""
        self._models: dict[Key, dict[str | None, int]] = {}
        """Number of the latest update by run and trained model."""
        self._most_runs = most_runs
        self._recent: dict[str, None] = {}

    def apply(self, record: StoredRecord) -> None:
        """Fold a record; an unreadable record is counted with the type ``unreadable``."""
        event: Event | None = None
        kind = _TYPE_NAMES.get(record.headers.get("ce_type", b""))
        source = record.headers.get("ce_source", b"")
        if record.topic in _DECODED or kind is None or not source.startswith(_SOURCE_PREFIX):
            try:
                event = event_from_record(record)
            except EventError:
                self.events["", record.topic, "unreadable"] += 1
                return
            run, kind = event.run_id, str(event.__struct_config__.tag)
        else:
            run = source.removeprefix(_SOURCE_PREFIX).decode(errors="replace")
        self._touch(run)
        self.events[run, record.topic, kind] += 1
        if event is not None:
            self._apply_event(event)

    def _apply_event(self, event: Event) -> None:
        run = event.run_id
        if isinstance(event, GameOutcome):
            self.games[run, event.split, event.reason] += 1
        elif isinstance(event, LearnerUpdate):
            self._apply_update(event)
        elif isinstance(event, RecordRejected):
            self.dead_letters[run, event.consumer.partition("/")[0], event.topic] += 1
        elif isinstance(event, StepsDropped):
            self._apply_drops(event)
        elif isinstance(event, Metrics):
            self._apply_metrics(event)
        elif event.TOPIC == RunStarted.TOPIC:
            self.apply_run(event)

    def apply_run(self, event: Event) -> None:
        """Fold an event of topic ``runs`` without counting it."""
        run = event.run_id
        self._touch(run)
        self.runs.apply(event)
        if not isinstance(event, RunFinished):
            self._progress(event)
            return
        for service in [key for key in self.service_up if key[0] == run]:
            self.service_up[service] = 0.0
        for value in [key for key in self.values if key[0] == run]:
            del self.values[value]  # these values describe a running run, and this one is over

    def _apply_update(self, event: LearnerUpdate) -> None:
        key = (event.run_id,)
        models = self._models.setdefault(key, {})
        if event.update <= models.get(event.model, 0):
            return  # the record was delivered again
        models[event.model] = event.update
        self.update[key] = min(models.values())
        self.trained[key] += len(event.step_ids)
        self.tokens[key] += int(event.metrics.get("completion_tokens", 0))
        for drop in event.dropped:
            self.dropped[event.run_id, drop.reason] += 1
        self._progress(event)

    def _apply_drops(self, event: StepsDropped) -> None:
        for drop in event.dropped:
            self.dropped[event.run_id, drop.reason] += 1

    def _apply_metrics(self, event: Metrics) -> None:
        run = event.run_id
        if event.source == LAUNCHER:
            for service, (up, restarts) in read_services(event).items():
                self.service_up[run, service] = up
                self.service_restarts[run, service] = restarts
        elif event.source == ARCHIVER:
            self.archived[run,] = read_archived(event)
        else:
            for name, value in event.values.items():
                self.values[run, event.source, name] = value

    def _progress(self, event: Event) -> None:
        key = (event.run_id,)
        self.progress_s[key] = max(self.progress_s.get(key, 0.0), event.occurred_at_ms / 1000)

    def _touch(self, run: str) -> None:
        self._recent.pop(run, None)
        self._recent[run] = None
        if len(self._recent) > self._most_runs:
            self._forget(next(iter(self._recent)))

    def _forget(self, run: str) -> None:
        del self._recent[run]
        self.runs.runs.pop(run, None)
        counts = (self.events, self.games, self.trained, self.dropped, self.tokens, self.dead_letters)
        latest = (self.update, self._models, self.progress_s, self.service_up, self.service_restarts)
        tables: tuple[dict[Key, Any], ...] = (*counts, *latest, self.archived, self.values)
        for table in tables:  # ``Any``: counts and values
            for key in [key for key in table if key[0] == run]:
                del table[key]
