"""The runtime of all consumers: one loop (``consumer``) that feeds a sink with the partitions of a group.

A stream processor is a ``ProcessorSpec``, which the sink in ``fold_sink`` runs. The sink in ``plugins.host``
runs a plug-in. The archiver has a sink of its own. To add a consumer, write a
:class:`~unstable_stream.services.streams.consumer.Sink` and pass it to
:func:`~unstable_stream.services.streams.consumer.run_consumer`.
"""
