"""A local log that loses the last records of one partition, as Kafka does in an unclean leader election."""

import sqlite3
from pathlib import Path

from unstable_stream.log.port import TopicPartition


def lose_end(path: Path, at: TopicPartition, first: int) -> None:
    """Remove the records from an offset on; positions and saved states stay."""
    connection = sqlite3.connect(path)
    with connection:
        ((number,),) = connection.execute(
            "SELECT partition_id FROM partitions JOIN topics USING (topic_id) "
            "WHERE name = ? AND partition = ?",
            at,
        )
        connection.execute(f'DELETE FROM records_{number} WHERE "offset" >= ?', (first,))
    connection.close()
