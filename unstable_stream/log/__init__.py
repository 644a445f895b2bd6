"""The event log: one port, the topics' declarations, and the adapters behind the port.

``port`` defines a log; ``local`` keeps it in a SQLite file, ``kafka`` on a cluster; ``records`` turns events
into records and back. Importing the package loads no adapter.
"""

from unstable_stream.log.port import (
    Consumer,
    EventLog,
    Positions,
    Producer,
    Record,
    Start,
    StoredRecord,
    TopicPartition,
    TopicSpec,
    Transaction,
)
from unstable_stream.log.records import event_from_record, record_from_event

__all__ = [
    "Consumer",
    "EventLog",
    "Positions",
    "Producer",
    "Record",
    "Start",
    "StoredRecord",
    "TopicPartition",
    "TopicSpec",
    "Transaction",
    "event_from_record",
    "record_from_event",
]
