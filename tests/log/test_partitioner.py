"""Keys land where Kafka would put them."""

import pytest

from unstable_stream.log.partitioner import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # the cases of Kafka's own UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_kafkas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFFFFFF


def test_partitions_use_the_positive_part_of_the_hash() -> None:
    assert partition_for_key("21", 7) == (-973932308 & 0x7FFFFFFF) % 7
    assert {partition_for_key(f"run-{n}", 4) for n in range(100)} == {0, 1, 2, 3}
    assert partition_for_key("", 3) == partition_for_key("", 3) < 3
