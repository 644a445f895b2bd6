"""Run a plug-in over events in memory, without a log, for its tests."""

import asyncio
import inspect
from collections.abc import Iterable
from typing import Any

from unstable_stream.events import Event, Metrics
from unstable_stream.streams.plugins.context import Context, Position
from unstable_stream.streams.plugins.declare import Plugin

__all__ = ["call_if_there", "metrics_of"]


def metrics_of(plugin: Plugin, events: Iterable[Event]) -> list[Metrics]:
    """Return the metrics that the plug-in emits for ``events``. Its exceptions are not caught.

    Each topic is one partition. Do not call it inside a running event loop.
    """
    return asyncio.run(_rehearse(plugin, events))


async def _rehearse(plugin: Plugin, events: Iterable[Event]) -> list[Metrics]:
    handler = plugin.open()
    emitted: list[Metrics] = []
    states: dict[tuple[str, str], Any] = {}
    offsets: dict[str, int] = {}
    await call_if_there(handler, "start")
    for event in events:
        topic = event.TOPIC
        position = Position(topic, 0, offsets.setdefault(topic, 0))
        offsets[topic] += 1
        if topic not in plugin.topics or not plugin.wants(event):
            continue
        if plugin.state is None:
            context = Context(plugin.name, event, position)
        else:
            where = (topic, event.run_id)
            if where not in states:
                states[where] = plugin.state()
            context = Context(plugin.name, event, position, states[where])
        result = handler.handle(event, context)
        if inspect.isawaitable(result):
            await result
        emitted += context.emitted
    await call_if_there(handler, "stop")
    return emitted


async def call_if_there(handler: object, method: str) -> None:
    """Call a method, sync or ``async``, if the plug-in's class has it."""
    called = getattr(handler, method, None)
    if called is not None:
        result = called()
        if inspect.isawaitable(result):
            await result
