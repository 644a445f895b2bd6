"""Plug-in consumers: a decorated function or class that reads events and emits metrics.

``@consumer`` declares one. It receives a :class:`Context` beside each event. :func:`metrics_of` runs it over
events in memory, for tests. ``unstable-stream consume module:name`` runs it on a log.
"""

from unstable_stream.services.streams.plugins.declare import ENTRY_POINTS as ENTRY_POINTS
from unstable_stream.services.streams.plugins.declare import Context as Context
from unstable_stream.services.streams.plugins.declare import Discovered as Discovered
from unstable_stream.services.streams.plugins.declare import Handler as Handler
from unstable_stream.services.streams.plugins.declare import Plugin as Plugin
from unstable_stream.services.streams.plugins.declare import Position as Position
from unstable_stream.services.streams.plugins.declare import StateCodec as StateCodec
from unstable_stream.services.streams.plugins.declare import consumer as consumer
from unstable_stream.services.streams.plugins.declare import discovered_plugins as discovered_plugins
from unstable_stream.services.streams.plugins.declare import load_plugin as load_plugin
from unstable_stream.services.streams.plugins.worker import metrics_of as metrics_of
