"""Run a plug-in consumer in its own process and group, so that it never holds back a run."""

import asyncio

from unstable_stream.errors import UnknownTopicError
from unstable_stream.events import Metrics, RecordRejected
from unstable_stream.log.port import EventLog, Start
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.streams.consumer import Pace, run_consumer
from unstable_stream.streams.plugins import Plugin
from unstable_stream.streams.plugins.sink import PluginCounters, PluginSink, plugin_group
from unstable_stream.streams.plugins.state import PluginStates
from unstable_stream.streams.plugins.worker import PluginWorker

__all__ = ["PluginCounters", "plugin_group", "run_plugin"]


async def run_plugin(
    log: EventLog,
    plugin: Plugin,
    data: DataDir,
    *,
    stop: asyncio.Event,
    start: Start = "beginning",
    run_id: str | None = None,
    until_end: bool = False,
    drain: bool = False,
    reset: bool = False,
    max_records: int = 1000,
    counters: PluginCounters | None = None,
) -> None:
    """Run a plug-in until ``stop`` is set or the end is reached.

    Args:
        log: the event log.
        plugin: the plug-in.
        data: the data directory with the file of states.
        stop: ends the host after the current batch, or after draining.
        start: the place to begin in partitions without a stored position.
        run_id: the plug-in receives only events of this run; ``None``: of all runs.
        until_end: stop at the ends that the topics have now.
        drain: after ``stop``, first handle everything up to the ends of the topics at that moment.
        reset: first forget stored positions and states.
        max_records: the most records of one batch.
        counters: updated while the host runs.

    Raises:
        PluginError: the plug-in does not start, or its state cannot be stored.
        UnknownTopicError: the log has no such topic.
    """
    await _ensure_topics(log, plugin)
    group = plugin_group(plugin, run_id)
    log_id = await log.log_id()
    worker = PluginWorker(plugin, run_id)
    try:
        await worker.start()
        states: PluginStates | None = None
        if plugin.state is not None:
            path = data.root / "plugins" / f"{plugin.name}.sqlite"
            states = await worker.do(lambda: PluginStates(path, log_id, group))
        if states is not None and reset:
            await worker.do(states.forget)
        consumer = await log.consumer(plugin.topics, group, "beginning")
        sink = PluginSink(
            log=log,
            plugin=plugin,
            run_id=run_id,
            consumer=consumer,
            worker=worker,
            states=states,
            start=start,
            forgotten=reset,
            counters=counters or PluginCounters(),
            stop=stop,
            drain=drain,
        )
        await run_consumer(
            log,
            plugin.topics,
            consumer,
            sink,
            stop=stop,
            drain=drain,
            until_end=until_end,
            pace=Pace(max_records),
        )
    finally:
        await worker.close()


async def _ensure_topics(log: EventLog, plugin: Plugin) -> None:
    specs = load_topics()
    there = await log.topics()
    needed = {*plugin.topics, Metrics.TOPIC, RecordRejected.TOPIC} - there.keys()
    if unknown := sorted(needed - specs.keys()):
        raise UnknownTopicError(
            f"plug-in {plugin.name!r}: no topic {unknown[0]!r} on this log; it has {', '.join(sorted(there))}"
        )
    if needed:
        await log.create_topics([specs[name] for name in sorted(needed)])
