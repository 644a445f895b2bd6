"""The lab's proof that an archive has what the log has, without a lab."""

import pytest

from tools.lab.cluster import LabError, _named
from tools.lab.faults import FAULTS
from tools.lab.proofs import Held, held_by_archive, lacking
from unstable_stream.log.port import TopicPartition

STEPS = TopicPartition("steps", 0)
GAMES = TopicPartition("game-outcomes", 3)
RATINGS = TopicPartition("ratings", 1)
LOG = {STEPS: Held(3, 3, 7), GAMES: Held(1, 1, 4), RATINGS: Held(1, 1, 9)}
COMPACTED = {"ratings"}


def test_the_answer_of_sql_is_read_also_between_lines_of_its_log() -> None:
    said = (
        "topic,partition,count_star(),count(DISTINCT offset),sum(offset)\n"
        "warning, 5 of them, 1,2,3\n"
        "game-outcomes,3,1,1,4\r\n"
        "steps,0,3,3,7\n"
    )
    assert held_by_archive(said) == {GAMES: Held(1, 1, 4), STEPS: Held(3, 3, 7)}


def test_the_same_records_are_whole() -> None:
    assert lacking(LOG, dict(LOG), COMPACTED) == []


@pytest.mark.parametrize(
    "held",
    [
        Held(2, 2, 5),  # one was left out
        Held(4, 3, 9),  # one was stored twice
        Held(3, 3, 8),  # another one in its place
        Held(4, 4, 12),  # one that the log does not have
    ],
)
def test_what_is_lost_twice_or_another_is_found(held: Held) -> None:
    (wrong,) = lacking(LOG, LOG | {STEPS: held}, COMPACTED)
    assert wrong == f"steps[0]: the log holds {LOG[STEPS]}, the archive {held}"


def test_a_partition_that_is_missing_is_found_on_either_side() -> None:
    without = {at: held for at, held in LOG.items() if at != GAMES}
    assert len(lacking(LOG, without, COMPACTED)) == 1
    assert len(lacking(without, LOG, COMPACTED)) == 1


def test_what_the_log_compacted_the_archive_may_still_have_but_once() -> None:
    assert lacking(LOG, LOG | {RATINGS: Held(5, 5, 30)}, COMPACTED) == []
    assert lacking(LOG, LOG | {RATINGS: Held(5, 4, 30)}, COMPACTED) != []
    assert lacking(LOG, LOG | {RATINGS: Held(0, 0, 0)}, COMPACTED) != []


def test_all_faults_are_those_that_the_kind_of_archive_allows() -> None:
    assert {fault.name for fault in _named("all", "shared")} == FAULTS.keys()
    assert FAULTS.keys() - {fault.name for fault in _named("all", "file")} == {"store-in-archive-commit"}
    with pytest.raises(LabError, match="store-in-archive-commit needs --archive shared"):
        _named("links-moment,store-in-archive-commit", "file")
