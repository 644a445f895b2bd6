"""The Kafka log uses of aiokafka what has a public name, and no object's insides anywhere."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import unstable_stream
from unstable_stream.log.kafka.membership import Membership, ShareAssignor
from unstable_stream.log.port import TopicPartition

PACKAGE = Path(unstable_stream.__file__).parent
INSIDES = {"f_locals", "f_globals", "cr_frame", "gi_frame", "ag_frame", "get_coro"}


def _reached_into(tree: ast.AST) -> Iterator[str]:
    """Name each private attribute of something that is not ``self`` or ``cls``."""
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                names = [name]
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "delattr" | "hasattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ):
                names = [name]
            case ast.ImportFrom(module=str(module), names=imported) if module.startswith("aiokafka"):
                names = [*module.split("."), *(part.name for part in imported)]
        yield from (name for name in names if name.startswith("_") and not name.startswith("__"))


def _insides(tree: ast.AST) -> Iterator[str]:
    """Name each way into a frame, as an attribute or as a text."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Constant(value=str(name)) if name in INSIDES:
                yield name


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("consumer._client.close()", ["_client"]),
        ("self._consumer._coordinator.generation", ["_coordinator"]),
        ("self._consumer.position(at)", []),
        ("getattr(producer, '_sender')", ["_sender"]),
        ("from aiokafka.record._crecords import x", ["_crecords"]),
        ("producer.__class__", []),
    ],
)
def test_a_private_part_is_recognised(source: str, names: list[str]) -> None:
    assert [*_reached_into(ast.parse(source))] == names


def test_the_insides_of_a_coroutine_are_recognised() -> None:
    source = "task.get_coro().cr_frame.f_locals; getattr(coroutine, 'cr_frame')"
    assert sorted(_insides(ast.parse(source))) == [
        "cr_frame",
        "cr_frame",
        "f_locals",
        "get_coro",
    ]


def test_the_kafka_log_reaches_into_nothing() -> None:
    paths = sorted((PACKAGE / "log" / "kafka").glob("*.py"))
    assert len(paths) > 5
    found = [(path.name, name) for path in paths for name in _reached_into(ast.parse(path.read_text()))]
    assert found == []


def test_nothing_looks_into_frames() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    found = [(str(path), name) for path in paths for name in _insides(ast.parse(path.read_text()))]
    assert found == []


def _membership() -> tuple[ShareAssignor, Membership]:
    assignor = ShareAssignor()
    return assignor, Membership(assignor, lambda: None)


def _get_a_share(assignor: ShareAssignor, members: Membership, name: str, topic: str = "t") -> None:
    """Go through the end of a rebalance, as aiokafka does, with partition 0 as this member's share."""
    at = TopicPartition(topic, 0)
    share = assignor.assign(_Cluster(), {name: _metadata(topic)})[name]
    assignor.on_assignment(share)
    members.on_partitions_assigned([at])


class _Cluster:
    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}


def _metadata(topic: str) -> object:
    return ShareAssignor().metadata([topic])


@pytest.mark.parametrize(
    ("joins", "name", "unbroken"),
    [
        (1, "member-a", True),
        (2, "member-a", False),  # a generation may have begun and ended without this member
        (1, "member-b", False),  # the brokers had forgotten it
    ],
)
def test_a_share_continues_the_last_one_only_if_no_generation_was_missed(
    joins: int, name: str, unbroken: bool
) -> None:
    assignor, members = _membership()
    assignor.metadata(["t"])
    _get_a_share(assignor, members, "member-a")
    assert members.owned == {TopicPartition("t", 0): 1}
    for _ in range(joins):
        assignor.metadata(["t"])
    _get_a_share(assignor, members, name)
    assert members.owned == {TopicPartition("t", 0): 1 if unbroken else 2}


def test_a_share_from_a_leader_that_writes_no_names_continues_none() -> None:
    assignor, members = _membership()
    for version in (1, 2):
        assignor.metadata(["t"])
        nameless = super(ShareAssignor, assignor).assign(_Cluster(), {"a": _metadata("t")})["a"]
        assignor.on_assignment(nameless)
        members.on_partitions_assigned([TopicPartition("t", 0)])
        assert members.owned == {TopicPartition("t", 0): version}
