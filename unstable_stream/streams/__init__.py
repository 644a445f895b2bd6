"""The runtime of all consumers: one loop (``consumer``) that feeds a sink with the partitions of a group.

A stream processor is a ``ProcessorSpec`` under the sink in ``folds``, a plug-in
runs under the one in ``plugins.sink``, and the archiver brings its own. To add a consumer, write a sink (the
port is ``sink``) and give it to :func:`~unstable_stream.streams.consumer.run_consumer`.
"""
