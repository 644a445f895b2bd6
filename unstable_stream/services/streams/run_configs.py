"""The runs of a log and their first configurations, for consumers that serve all runs.

The settings come from the ``run-started`` event, so they are the same whenever the log is folded again. That
event is the first of its run, so a consumer that reads any other event of the run finds it in ``runs``.
"""

import asyncio
from collections.abc import Collection, Mapping

from unstable_stream.errors import EventError
from unstable_stream.events import RunStarted
from unstable_stream.log.port import Consumer, EventLog, Positions
from unstable_stream.log.reading import read_on, readable_events, settled_ends
from unstable_stream.log.topic_drift import partitions_changed
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import RunHistory
from unstable_stream.runs.starts import recorded_starts


class RunDirectory:
    """The runs of a log and their first configurations. Use it with ``async with``, or call :meth:`close`."""

    def __init__(self, log: EventLog) -> None:
        self._event_log = log
        self._history = RunHistory()
        self._configs: dict[str, RunConfig] = {}
        self._partitions: Mapping[str, int] = {}
        """The number of partitions by topic when topic ``runs`` was first read."""
        self._log_id = ""
        self._consumer: Consumer | None = None
        self._reading = asyncio.Lock()

    async def learn(self, run_ids: Collection[str]) -> None:
        """Read topic ``runs`` to its end if one of these runs is not known yet."""
        if self._history.runs.keys() >= set(run_ids):
            return
        async with self._reading:
            if self._history.runs.keys() >= set(run_ids):
                return  # another partition asked at the same time and has read it
            await self._read()

    async def _read(self) -> None:
        # A start may lie behind an open transaction of another producer, unlike other events of its run.
        ends = await settled_ends(self._event_log, (RunStarted.TOPIC,))
        if self._consumer is None:
            self._partitions, self._log_id = await self._event_log.topics(), await self._event_log.log_id()
            self._consumer = await self._event_log.consumer([RunStarted.TOPIC])
        async for records in read_on(self._consumer, ends):
            for event in readable_events(records):
                self._history.apply(event)

    def config(self, run_id: str) -> RunConfig:
        """Return the first configuration of a run.

        Raises:
            EventError: there is no such run.
            ConfigError: this version of the package does not accept the configuration.
        """
        config = self._configs.get(run_id)
        if config is None:
            if self._began(run_id) is None:
                raise EventError(
                    f"run {run_id!r} is not in topic {RunStarted.TOPIC}: nothing says how to fold it"
                )
            config = self._configs[run_id] = self._history.runs[run_id].first_config()
            find_code(config)
        return config

    def check_partitions(self, run_id: str, topics: Collection[str]) -> None:
        """Raise :class:`PartitionsChangedError` if a topic had other partitions when a run began."""
        began = self._began(run_id)
        if began is None or began.log_id != self._log_id:
            return
        for topic in topics:
            before, now = len(began.start_offsets.get(topic, ())), self._partitions.get(topic, 0)
            if before and before != now:
                raise partitions_changed(topic, before, now, f"when run {run_id} began")

    async def starts(self, run_id: str, topics: Collection[str]) -> Positions:
        """Return the offsets at which a run began, where they are known; they may be deleted by now."""
        await self.learn([run_id])
        return recorded_starts(self._began(run_id), self._log_id, topics)

    def _began(self, run_id: str) -> RunStarted | None:
        run = self._history.runs.get(run_id)
        return None if run is None else run.began

    async def close(self) -> None:
        """Close the consumer of topic ``runs``."""
        if self._consumer is not None:
            await self._consumer.close()

    async def __aenter__(self) -> "RunDirectory":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
