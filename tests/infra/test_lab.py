"""The cluster in a box, without one: its page, its network, its run, and its proofs."""

from pathlib import Path

import pytest

from tools.lab.cluster import LOCATIONS, RUN, LabError, _named, main, why_unavailable
from tools.lab.faults import FAULTS
from tools.lab.hosts import HostsUnavailableError, free_networks
from tools.lab.proofs import Held, held_by_archive, lacking
from tools.lab.results import FaultResult, read_results, table
from unstable_stream.api.settings import make_config
from unstable_stream.log.port import TopicPartition

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_names_every_fault() -> None:
    page = (DOCS / "evidence" / "cluster-faults.md").read_text()
    for fault in FAULTS.values():
        assert f"| `{fault.name}` | {fault.what} |" in page


def test_a_line_has_all_of_a_result(tmp_path: Path) -> None:
    result = FaultResult(
        "links-moment", "links are down", 2.0, 1, 0.5, 3.0, ["error: it ended"], audit="balanced"
    )
    (tmp_path / "lines").write_text(result.line() + "\n" + result.line() + "\n")
    assert read_results(tmp_path / "lines") == [result, result]


def test_the_table_says_how_each_run_went_on() -> None:
    went_on = FaultResult(
        "a", "first", 4.0, 2, 1.0, 3.0, audit="balanced", verify="verified", note="on it: x"
    )
    resumed = FaultResult("b", "second", 0.0, 0, 1.0, 9.0, ["error: it ended"], audit="balanced")
    failed = FaultResult("c", "third", failure="it did not go on\nin many words")
    assert table([went_on, resumed, failed])[2:] == [
        "| `a` | first (on it: x) | 2 | 1 s | 3 s | went on | balanced, verified |",
        "| `b` | second | – | 1 s | 9 s | ended 1 ×, resumed | balanced |",
        "| `c` | third | – | none | 0 s | went on | **it did not go on** |",
    ]


# -- its network: pure, without any ----------------------------------------------------------------

HOST = ["127.0.0.1/8", "192.0.2.2/24", "default", "192.0.2.0/24", "::1/128", "fe80::1/64", "0.0.0.0/0"]
"""What an ordinary machine has addresses in and knows ways to."""


@pytest.mark.parametrize(
    ("taken", "lost"),
    [
        ("192.0.2.7/24", set()),
        ("198.18.7.1/24", {"198.18.7.0/24"}),  # another lab's bridge
        ("198.18.7.1", {"198.18.7.0/24"}),
        ("198.19.4.0/23", {"198.19.4.0/24", "198.19.5.0/24"}),
        ("198.18.0.1/16", {f"198.18.{number}.0/24" for number in range(256)}),  # a tunnel over half of it
    ],
)
def test_what_another_lab_or_bridge_has_is_left_to_it(taken: str, lost: set[str]) -> None:
    block = {f"198.{half}.{number}.0/24" for half in (18, 19) for number in range(256)}
    assert set(free_networks([*HOST, taken])) == block - lost


def test_a_block_that_is_taken_whole_is_told_and_another_may_be_named() -> None:
    whole = [*HOST, "198.18.0.0/15"]
    said = r"198\.18\.0\.0/15 is in use on this machine: .*--network"
    with pytest.raises(HostsUnavailableError, match=said):
        free_networks(whole)
    assert free_networks(whole, "10.213.7.0/24") == ["10.213.7.0/24"]


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("192.0.2.0/24", r"192\.0\.2\.0/24 is in use on this machine \(192\.0\.2\.0/24\): .*name another"),
        ("10.0.0.0/8", r"--network 10\.0\.0\.0/8: expected one of 24 bits"),
        ("10.213.7.9/24", r"--network 10\.213\.7\.9/24: .*expected e\.g\. 10\.213\.7\.0/24"),
        ("bridge0", r"--network bridge0: .*expected e\.g\. 10\.213\.7\.0/24"),
    ],
)
def test_a_network_that_cannot_be_had_is_refused_in_words(named: str, problem: str) -> None:
    with pytest.raises(HostsUnavailableError, match=problem):
        free_networks(HOST, named)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--network", "bridge0"], 1, "error: --network bridge0: "),
        (["--directory", str(DOCS)], 1, f"error: {DOCS} is not an empty directory: remove it, or name"),
        (["--faults", "links-moment,flood"], 2, "error: no fault is called 'flood'; there are links-moment,"),
    ],
)
def test_the_lab_refuses_with_one_line(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    assert main(arguments) == status
    printed = capsys.readouterr().err
    assert printed.startswith(said)
    assert printed.count("\n") == 1


# -- that an archive has what the log has ----------------------------------------------------------

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


@pytest.mark.parametrize(
    ("held", "wrong"),
    [
        ({}, []),
        ({STEPS: Held(2, 2, 5)}, [STEPS]),  # one was left out
        ({STEPS: Held(4, 3, 9)}, [STEPS]),  # one was stored twice
        ({STEPS: Held(3, 3, 8)}, [STEPS]),  # another one in its place
        ({STEPS: Held(4, 4, 12)}, [STEPS]),  # one that the log does not have
        ({TopicPartition("steps", 1): Held(1, 1, 0)}, [TopicPartition("steps", 1)]),
        # What the log compacted the archive may still have, but once.
        ({RATINGS: Held(5, 5, 30)}, []),
        ({RATINGS: Held(5, 4, 30)}, [RATINGS]),
        ({RATINGS: Held(0, 0, 0)}, [RATINGS]),
    ],
)
def test_what_is_lost_twice_or_another_is_found(
    held: dict[TopicPartition, Held], wrong: list[TopicPartition]
) -> None:
    said = lacking(LOG, LOG | held, COMPACTED)
    assert [each.partition(":")[0] for each in said] == [str(at) for at in wrong]


def test_a_partition_that_the_archive_lacks_is_found() -> None:
    without = {at: held for at, held in LOG.items() if at != GAMES}
    (wrong,) = lacking(LOG, without, COMPACTED)
    assert wrong.startswith(f"{GAMES}: the log holds {LOG[GAMES]}, the archive ")


def test_all_faults_are_those_that_the_kind_of_archive_allows() -> None:
    assert {fault.name for fault in _named("all", "shared")} == FAULTS.keys()
    assert FAULTS.keys() - {fault.name for fault in _named("all", "file")} == {"store-in-archive-commit"}
    with pytest.raises(LabError, match="store-in-archive-commit needs --archive shared"):
        _named("links-moment,store-in-archive-commit", "file")


# -- its run ---------------------------------------------------------------------------------------


def test_a_cluster_changes_nothing_but_locations() -> None:
    alone = make_config({}, RUN, [])
    assert (alone.log, alone.learner.ckpt_root, alone.external) == ("local", None, ())
    wide = make_config({"log": "kafka://broker:9092"}, RUN, LOCATIONS[1::2])
    assert wide.log == "kafka://broker:9092"
    assert wide.learner.ckpt_root == "s3://lab/runs"
    assert wide.external == ("processors", "archiver")
    local = wide.learner.model_copy(update={"ckpt_root": None})
    assert wide.model_copy(update={"log": "local", "external": (), "learner": local}) == alone
