"""Dead letters: whole, one for each record and consumer however often written, none about a letter."""

from msgspec.structs import replace

from unstable_stream.events import RecordRejected, decode_event
from unstable_stream.log.port import Record, StoredRecord
from unstable_stream.log.topics import load_topics
from unstable_stream.services.streams.dead_letters import DeadLetters

RECORD = StoredRecord("steps", 3, 17, "run-a/7", b"\xff\x00", {"ce_id": b"x"}, 1_500)


def letter(records: list[Record]) -> RecordRejected:
    (record,) = records
    event = decode_event(record.value)
    assert isinstance(event, RecordRejected)
    return event


def test_it_keeps_the_record_with_reason_and_place() -> None:
    found = letter(DeadLetters("reward-processor/run-a", "run-a").about(RECORD, "no event"))
    assert (found.consumer, found.run_id, found.reason) == ("reward-processor/run-a", "run-a", "no event")
    assert (found.topic, found.partition, found.offset) == ("steps", 3, 17)
    assert (found.record_key, found.record_value) == ("run-a/7", b"\xff\x00")
    assert (found.record_headers, found.record_timestamp_ms) == ({"ce_id": b"x"}, 1_500)
    assert found.occurred_at_ms == 1_500
    for absurd in (-1, 10**18):
        found = letter(DeadLetters("archiver").about(replace(RECORD, timestamp_ms=absurd), "r"))
        assert (found.occurred_at_ms, found.record_timestamp_ms) == (0, absurd)
    assert DeadLetters("archiver").about(replace(RECORD, topic="dead-letters"), "about a letter") == []


def test_ids_are_those_that_every_version_has_written() -> None:
    """Else a letter written again after an upgrade would count twice."""
    assert {
        consumer: letter(letters.about(RECORD, "r")).event_id
        for consumer, letters in {
            "one run": DeadLetters("reward-processor/run-a", "run-a"),
            "all runs": DeadLetters("reward-processor"),
            "plug-in": DeadLetters("plugin/draws"),
            "archiver": DeadLetters("archiver", log_id="log-1"),
        }.items()
    } == {
        "one run": "d7cf3c31-6136-50e3-a9c7-b4036af457bb",
        "all runs": "8b8e82ad-4025-5638-8ebd-39070a4eccd7",
        "plug-in": "e30488d9-1d73-5baf-a4ca-d9792862a6cd",
        "archiver": "c2db6e3d-71a1-5b43-81a2-fdaca06b14ca",
    }


def test_the_same_record_has_the_same_letter_whatever_the_reason_and_another_has_another() -> None:
    letters = DeadLetters("archiver", log_id="log-1")
    first, again, another = (
        letter(letters.about(record, reason)).event_id
        for record, reason in ((RECORD, "r"), (RECORD, "s"), (replace(RECORD, offset=18), "r"))
    )
    assert first == again != another


def test_a_letter_fits_its_topic_whatever_the_record_holds() -> None:
    headers = {"x" * 40_000: b"", "ce_id": b"game", "large": b"\xff" * 10**6, "none": b""}
    headers |= {str(number): b"\x00" * 1000 for number in range(1000)}
    huge = replace(RECORD, key="\x00" * 10**6, value=b"\xff" * 2 * 10**7, headers=headers)
    (record,) = DeadLetters("archiver").about(huge, "reason " * 10**6)
    found = letter([record])
    assert len(record.value) + 10_000 < load_topics()["dead-letters"].max_message_bytes
    assert found.record_value == b"\xff" * 8_388_608
    assert found.record_headers["ce_id"] == b"game"
    assert "large" not in found.record_headers
    assert "key and headers cut; whole at steps[3]@17" in found.reason
    assert found.reason.endswith("(value cut from 20000000 to 8388608 bytes; whole at steps[3]@17)")
