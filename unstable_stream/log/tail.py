"""The last records of a topic, whatever takes up offsets between them."""

from collections.abc import Callable, Mapping

from unstable_stream.log.port import Consumer, EventLog, StoredRecord, TopicPartition

__all__ = ["read_tail"]


async def read_tail(
    log: EventLog, topic: str, count: int, wanted: Callable[[StoredRecord], bool] = lambda record: True
) -> tuple[list[StoredRecord], Consumer]:
    """Return the last ``count`` records that are wanted, oldest first, and a consumer that goes on behind.

    Offsets have gaps (transaction markers, compaction), so how far back ``count`` records lie is found by
    reading: twice as far again until they are there. The caller closes the consumer.
    """
    begins, ends = await log.beginning_offsets(topic), await log.end_offsets(topic)
    consumer = await log.consumer([topic], start="end")
    found: dict[TopicPartition, list[StoredRecord]] = {at: [] for at in ends}
    back = count
    unfinished = set(ends) if count else set()
    while unfinished:
        starts = {at: max(begins[at], ends[at] - back) if at in unfinished else ends[at] for at in ends}
        found |= await _read_between(consumer, starts, {at: ends[at] for at in unfinished}, wanted)
        # Each partition may hold any share of the last records: every one must yield as many, or all it has.
        unfinished = {at for at in unfinished if len(found[at]) < count and starts[at] > begins[at]}
        back *= 4
    await consumer.seek(ends)
    records = sorted(
        (record for records in found.values() for record in records),
        key=lambda record: (record.timestamp_ms, record.partition, record.offset),
    )
    return records[-count:] if count else [], consumer


async def _read_between(
    consumer: Consumer,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    wanted: Callable[[StoredRecord], bool],
) -> dict[TopicPartition, list[StoredRecord]]:
    await consumer.seek(starts)
    found: dict[TopicPartition, list[StoredRecord]] = {at: [] for at in ends}
    while any(consumer.positions()[at] < end for at, end in ends.items()):
        for record in await consumer.poll(max_records=2000, timeout_s=0.2):
            at = TopicPartition(record.topic, record.partition)
            if at in ends and record.offset < ends[at] and wanted(record):
                found[at].append(record)
    return found
