"""What a producer sends in which order: a later one with the same id first aborts what was left."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.client import AIOKafkaClient

from unstable_stream.log.kafka.records import pack, prepare
from unstable_stream.log.kafka.sending import Sender
from unstable_stream.log.kafka.topics import KafkaTopics, Topic
from unstable_stream.log.port import Record, TopicPartition


class _Topics:
    def known(self, name: str) -> Topic:
        return Topic(name, partitions=2, max_message_bytes=10**6)


class _Brokers:
    """Stands where the client of aiokafka is: answers all that is asked, and keeps it in words."""

    def __init__(self, state: str) -> None:
        self.asked: list[str] = []
        self._state = state
        self.cluster = SimpleNamespace(leader_for_partition=lambda at: 1)

    async def coordinator_lookup(self, kind: object, key: str) -> int:
        return 1

    async def add_topic(self, topic: str) -> None: ...

    async def send(self, node: int, request: Any, group: object = None) -> Any:
        name = type(request).__name__.removesuffix("Request")
        told = {key.lstrip("_"): value for key, value in vars(request).items()}
        if name == "DescribeTransaction":
            found = (0, "id", self._state) if self._state else (105, "id", "")
            return SimpleNamespace(transactions=[found])
        if name == "InitProducerId":
            self._state = "Empty"
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


async def _commit(sender: Sender, partitions: list[int], groups: list[str]) -> None:
    topics = cast(KafkaTopics, _Topics())
    now_ms = time.time_ns() // 1_000_000
    records = [Record("t", "k", b"v", partition=number, timestamp_ms=now_ms) for number in partitions]
    batch = await prepare(records, topics)
    positions = {group: {TopicPartition("t", 0): 1} for group in groups}
    await sender.fill_transaction(pack([batch], topics, in_transaction=True), positions)
    await sender.commit_transaction()


@pytest.mark.parametrize(
    ("state", "given_up"),
    [
        ("", False),  # nobody had this id before
        ("Ongoing", True),
        ("PrepareAbort", True),
        ("CompleteAbort", True),
        ("PrepareEpochFence", True),
        ("PrepareCommit", False),
        ("CompleteCommit", False),
        ("Empty", False),
    ],
)
async def test_a_later_producer_aborts_what_was_given_up_before_it_first_sends(
    state: str, given_up: bool
) -> None:
    brokers = _Brokers(state)
    sender = Sender(cast(AIOKafkaClient, brokers), "id", 60.0)
    await sender.begin()
    await _commit(sender, [0], ["g"])
    first = ["add t[0]", "send to t[0]", "add g", "position of g"]
    assert sorted(brokers.asked[-6:-2]) == sorted(first)
    assert brokers.asked[-2:] == ["commit", "commit"]  # the second waits for the markers
    assert brokers.asked[:-6] == (["add t[0]", "add g", "abort"] if given_up else [])
    brokers.asked.clear()
    await _commit(sender, [0, 1], ["g"])
    cleared = ["add t[1]", "abort"] if given_up else []  # of each only once
    assert brokers.asked[: len(cleared) + 1] == [*cleared, "add t[0, 1]"]
