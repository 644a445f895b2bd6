"""The runtime of all consumers: one loop (``consumer``) that feeds a sink with the partitions of a group.

A stream processor is a ``ProcessorSpec``, which the sink in ``folds`` runs. The sink in ``plugins.sink`` runs
a plug-in. The archiver has a sink of its own. To add a consumer, write a sink (the port is ``sink``) and pass
it to :func:`~unstable_stream.streams.consumer.run_consumer`.
"""
