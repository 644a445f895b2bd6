"""What a producer sends in which order."""

import time
from types import SimpleNamespace
from typing import Any, cast

from aiokafka.client import AIOKafkaClient

from unstable_stream.log.kafka.records import pack, prepare
from unstable_stream.log.kafka.sending import Sender
from unstable_stream.log.kafka.topics import KafkaTopic, KafkaTopics
from unstable_stream.log.port import Record, TopicPartition


class _Topics:
    def known(self, name: str) -> KafkaTopic:
        return KafkaTopic(name, partitions=2, max_message_bytes=10**6)


class _Brokers:
    """Stands where the client of aiokafka is: answers all that is asked, and keeps it in words."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cluster = SimpleNamespace(leader_for_partition=lambda at: 1)

    async def coordinator_lookup(self, kind: object, key: str) -> int:
        return 1

    async def add_topic(self, topic: str) -> None: ...

    async def send(self, node: int, request: Any, group: object = None) -> Any:
        name = type(request).__name__.removesuffix("Request")
        told = {key.lstrip("_"): value for key, value in vars(request).items()}
        if name == "InitProducerId":
            return SimpleNamespace(error_code=0, producer_id=7, producer_epoch=3)
        if name == "Produce":
            at = [(topic, number) for topic, some in told["topics"] for number, _ in some]
            self.asked += [f"send to {topic}[{number}]" for topic, number in at]
            answers = [(topic, [(number, 0, 0, 0)]) for topic, number in at]
            return SimpleNamespace(topics=answers)
        match name:
            case "AddPartitionsToTxn":
                numbers = [f"{topic}{numbers}" for topic, numbers in told["topics"]]
                self.asked.append(f"add {', '.join(numbers)}")
            case "AddOffsetsToTxn":
                self.asked.append(f"add {told['group_id']}")
            case "TxnOffsetCommit":
                self.asked.append(f"position of {told['group_id']}")
            case "EndTxn":
                self.asked.append("commit" if told["transaction_result"] else "abort")
        return SimpleNamespace(error_code=0, errors=[])


async def test_partitions_and_group_are_added_before_anything_is_sent_to_them() -> None:
    brokers = _Brokers()
    sender = Sender(cast(AIOKafkaClient, brokers), "id", 60.0)
    await sender.begin()
    topics = cast(KafkaTopics, _Topics())
    now_ms = time.time_ns() // 1_000_000
    records = [Record("t", "k", b"v", partition=number, timestamp_ms=now_ms) for number in (0, 1)]
    packed = pack([await prepare(records, topics)], topics, in_transaction=True)
    await sender.fill_transaction(packed, "g", {TopicPartition("t", 0): 1})
    await sender.commit_transaction()
    asked = brokers.asked
    assert asked[0] == "add t[0, 1]"
    assert sorted(asked[1:5]) == ["add g", "position of g", "send to t[0]", "send to t[1]"]
    assert asked.index("add g") < asked.index("position of g")
    assert asked[5:] == ["commit", "commit"]  # the second waits for the markers
