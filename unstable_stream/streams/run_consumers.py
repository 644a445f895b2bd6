"""Run the consumers and trackers that a run's configuration names. They never hold back the run."""

import asyncio
from functools import partial

from unstable_stream.errors import ConfigError
from unstable_stream.log.port import EventLog
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.streams.plugins import Plugin, load_plugin
from unstable_stream.streams.plugins.host import run_plugin
from unstable_stream.streams.trackers import Received, build_tracker, tracker_plugin, tracker_title

__all__ = ["plugins_beside", "serve_beside"]


def plugins_beside(config: RunConfig, run_id: str, data: DataDir) -> list[Plugin]:
    """Return the consumers; a tracker becomes a consumer of metrics.

    Raises:
        ConfigError: two have the same name; they would share one group, and each would see only a part of the
            events.
        PluginError: a consumer cannot be loaded.
    """
    plugins = [load_plugin(target) for target in config.consumers]
    for place, spec in enumerate(config.trackers):
        title, directory = tracker_title(spec), data.tracking(run_id)
        make = partial(build_tracker, spec, directory, f"trackers.{place}")
        plugins.append(tracker_plugin(f"tracker-{title}", make, Received(directory, title)))
    names = [plugin.name for plugin in plugins]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"consumers, trackers: two are named {twice[0]!r}; give one another name, "
            '@consumer(name="..."), or leave it out'
        )
    return plugins


async def serve_beside(
    log: EventLog, run_id: str, config: RunConfig, data: DataDir, stop: asyncio.Event
) -> None:
    """Host all of them until ``stop``, then let each read to the end; the first failure ends all."""
    async with asyncio.TaskGroup() as hosts:
        for plugin in plugins_beside(config, run_id, data):
            hosts.create_task(run_plugin(log, plugin, data, stop=stop, run_id=run_id, drain=True))
