"""An event log in memory, for tests: it decides nothing by chance, and a test can make it fail.

``SimulatedLog(SimulatedStore())`` is a whole log: partitions, groups, transactions, fencing. It passes the
same contract suite as the local log and Kafka. Several handles on one store are several processes on one log.
All of them belong to one event loop. Nothing is kept when the store is gone.

A test changes what happens in two ways. :class:`~.conditions.Conditions` decides, for each handle, how long
requests take, which of them fail and what a poll returns. Methods of :class:`~.store.SimulatedStore` do what
happens to a disk: :meth:`~.store.SimulatedStore.delete_before` (retention),
:meth:`~.store.SimulatedStore.compact` and :meth:`~.store.SimulatedStore.lose_tail` (a power cut).
:meth:`~.store.SimulatedStore.hold_back` leaves a transaction of another producer open, as on Kafka.

``tests/simulation`` runs all services of a run on it.
"""

from unstable_stream.log.simulated.conditions import CALM, Calm, Conditions
from unstable_stream.log.simulated.log import SimulatedLog
from unstable_stream.log.simulated.store import SimulatedStore

__all__ = ["CALM", "Calm", "Conditions", "SimulatedLog", "SimulatedStore"]
