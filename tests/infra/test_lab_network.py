"""Labs take a network that nothing else on the machine has, or say what to do; pure, without any network."""

import pytest

from tools.lab.cluster import main, why_unavailable
from tools.lab.hosts import HostsUnavailableError, free_networks

HOST = ["127.0.0.1/8", "192.0.2.2/24", "default", "192.0.2.0/24", "::1/128", "fe80::1/64", "0.0.0.0/0"]
"""What an ordinary machine has addresses in and knows ways to."""


def test_any_of_the_block_is_free_on_an_ordinary_machine() -> None:
    assert len(free_networks(HOST)) == 512


@pytest.mark.parametrize(
    ("taken", "lost"),
    [
        ("198.18.7.1/24", ["198.18.7.0/24"]),  # another lab's bridge
        ("198.18.7.1", ["198.18.7.0/24"]),
        ("198.19.4.0/23", ["198.19.4.0/24", "198.19.5.0/24"]),
    ],
)
def test_what_another_lab_or_bridge_has_is_left_to_it(taken: str, lost: list[str]) -> None:
    assert sorted(set(free_networks(HOST)) - set(free_networks([*HOST, taken]))) == lost


def test_a_tunnel_over_half_of_the_block_leaves_the_other_half() -> None:
    left = free_networks([*HOST, "198.18.0.1/16"])
    assert len(left) == 256
    assert all(each.startswith("198.19.") for each in left)


def test_a_block_that_is_taken_whole_is_told_with_what_to_do() -> None:
    with pytest.raises(
        HostsUnavailableError, match=r"198\.18\.0\.0/15 is in use on this machine: .*--network"
    ):
        free_networks([*HOST, "198.18.0.0/15"])


def test_a_network_that_was_named_is_taken_if_it_is_free() -> None:
    assert free_networks([*HOST, "198.18.0.0/15"], "10.213.7.0/24") == ["10.213.7.0/24"]


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


def test_the_lab_refuses_it_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    assert main(["--network", "bridge0"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: --network bridge0: ")
    assert said.count("\n") == 1
