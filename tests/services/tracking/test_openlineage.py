"""The lineage of a recorded run, read back by OpenLineage's own classes."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.archive.history import made_up_run
from tests.builders import made
from tests.services.tracking.receiver import receiver
from unstable_stream.api.place import Place
from unstable_stream.api.replaying import track_run
from unstable_stream.errors import RunError
from unstable_stream.events import Checkpoint, Event, RunFinished, RunResumed, RunStarted

pytest.importorskip("openlineage.client")
pytestmark = pytest.mark.longer

RUN = "run-a"
EVENTS = made_up_run()
CHECKPOINTS = [event for event in EVENTS if isinstance(event, Checkpoint) and event.path is not None]


def _facet(told: dict[str, Any]) -> Any:
    """The library's facet of the schema that a facet names; its constructor refuses unknown fields."""
    from openlineage.client import facet_v2

    name = told["_schemaURL"].rpartition("/")[2]
    modules = [module for module in vars(facet_v2).values() if hasattr(module, name)]
    fields = {key: value for key, value in told.items() if not key.startswith("_")}
    facet = getattr(modules[0], name)(**fields)
    assert facet._schemaURL == told["_schemaURL"]
    assert told["_producer"] == "urn:unstable_stream"
    return facet


def _read(told: dict[str, Any]) -> Any:
    """An event as the library's own classes take it: they check times, ids and addresses."""
    from openlineage.client import event_v2

    def facets(named: dict[str, Any]) -> dict[str, Any]:
        return {name: _facet(facet) for name, facet in named.items()}

    def datasets(kind: Any, more: str) -> list[Any]:
        return [
            kind(one["namespace"], one["name"], facets=facets(one["facets"]), **{more: facets(one[more])})
            for one in told[{"inputFacets": "inputs", "outputFacets": "outputs"}[more]]
        ]

    return event_v2.RunEvent(
        eventType=event_v2.RunState[told["eventType"]],
        eventTime=told["eventTime"],
        run=event_v2.Run(told["run"]["runId"], facets(told["run"]["facets"])),
        job=event_v2.Job(told["job"]["namespace"], told["job"]["name"], facets(told["job"]["facets"])),
        inputs=datasets(event_v2.InputDataset, "inputFacets"),
        outputs=datasets(event_v2.OutputDataset, "outputFacets"),
        producer=told["producer"],
    )


def lineage(events: list[Event], directory: Path) -> list[Any]:
    """The lineage events of a run that is folded in memory, from the file."""
    from unstable_stream.services.tracking.openlineage import OpenLineageTracker

    tracker = OpenLineageTracker(str(directory))
    pieces = [piece for event in events for piece in tracker.handle(event)]
    assert len({piece.piece_id for piece in pieces}) == len(pieces)
    tracker.send(pieces)
    return [_read(json.loads(line)) for line in (directory / "openlineage.jsonl").read_text().splitlines()]


def states(events: list[Any]) -> list[str]:
    return [event.eventType.value for event in events]


def test_a_whole_run_is_what_the_library_reads_and_writes_twice_the_same(
    tracked: Place, tmp_path: Path
) -> None:
    from openlineage.client.serde import Serde

    done = track_run(tracked, RUN, "openlineage", tmp_path / "one")
    text = (tmp_path / "one" / RUN / "openlineage.jsonl").read_text()
    events = [_read(json.loads(line)) for line in text.splitlines()]
    assert [Serde.to_json(event) for event in events] == text.splitlines()
    assert states(events) == ["START", *["RUNNING"] * len(CHECKPOINTS), "COMPLETE"]
    assert (done.given, done.unit) == (len(events), "lineage events")
    assert len({event.run.runId for event in events}) == 1
    running = [event for event in events if event.eventType.value == "RUNNING"]
    assert [output.name for event in running for output in event.outputs] == [
        f"{RUN}/{checkpoint.model_uid}" for checkpoint in CHECKPOINTS
    ]
    assert "learner-updates" in {output.name for output in events[0].outputs}
    assert events[-1].outputs[-1].facets["version"].datasetVersion == "ab" * 32
    assert track_run(tracked, RUN, "openlineage", tmp_path / "one").given == 0
    track_run(tracked, RUN, "openlineage", tmp_path / "other")
    for place in ("one", "other"):
        assert (tmp_path / place / RUN / "openlineage.jsonl").read_text() == text


def test_an_endpoint_is_sent_what_the_file_has(tracked: Place, tmp_path: Path) -> None:
    track_run(tracked, RUN, "openlineage", tmp_path / "file")
    lines = (tmp_path / "file" / RUN / "openlineage.jsonl").read_text().splitlines()
    with receiver() as received:
        to = {"type": "openlineage", "url": received.url, "api_key": "key"}
        track_run(tracked, RUN, "openlineage", tmp_path / "http")  # what the file has, the address has not
        track_run(tracked, RUN, to, tmp_path / "http")
        assert track_run(tracked, RUN, to, tmp_path / "http").given == 0
        received.status = 400
        with pytest.raises(RunError, match=rf"openlineage: {received.url} does not take events: 400"):
            track_run(tracked, RUN, to, tmp_path / "refused")
        received.status = 302
        with pytest.raises(RunError, match=r"/api/v1/lineage redirects to .*/elsewhere"):
            track_run(tracked, RUN, to, tmp_path / "refused")
        to["url"] = received.url.replace("://", "://me:secret@")
        received.status = 400
        with pytest.raises(RunError, match=r"http://…@.* does not take events") as login:
            track_run(tracked, RUN, to, tmp_path / "refused")
        assert "secret" not in str(login.value)
    assert {path for path, _ in received.posted} == {"/api/v1/lineage"}
    sent = [json.loads(body) for _, body in received.posted[: len(lines)]]
    assert sent == [json.loads(line) for line in lines]


def test_each_part_of_a_run_begins_and_ends_once(tmp_path: Path) -> None:
    began, first = EVENTS[0], CHECKPOINTS[0]
    resumed = made(RunResumed, run_id=RUN, resumption=1, occurred_at_ms=first.occurred_at_ms + 1)
    end = made(RunFinished, run_id=RUN, outcome="failed", reason="no memory")
    events = lineage([began, first, resumed, end], tmp_path)
    assert states(events) == ["START", "RUNNING", "FAIL", "START", "FAIL"]
    runs = [event.run.runId for event in events]
    assert runs == [runs[0]] * 3 + [runs[3]] * 2
    assert runs[0] != runs[3]
    assert [one.name for one in events[3].inputs] == [f"{RUN}/{first.model_uid}"]
    errors = [event.run.facets["errorMessage"].message for event in (events[2], events[4])]
    assert errors == ["killed: nothing was recorded of its end", "no memory"]


@pytest.mark.parametrize(
    ("changes", "inputs"),
    [
        ({"config": {"model": "org/model"}}, [("huggingface", "org/model")]),
        ({"config": {"model": "/models/own"}}, [("file", "/models/own")]),
        ({"parent_run_id": "p", "parent_update": 3}, [("unstable_stream://id", "p/ckpt-000003")]),
        ({"parent_run_id": "p"}, [("unstable_stream://id", "steps")]),
        (
            {
                "parent_run_id": "p",
                "parent_update": 3,
                "config": {"log": "kafka://b:9092", "trained_models": [{"name": "a"}]},
            },
            [("kafka://b:9092", "p/ckpt-a-000003")],
        ),
    ],
)
def test_a_run_comes_from_its_model_or_its_parent(
    changes: dict[str, Any], inputs: list[tuple[str, str]], tmp_path: Path
) -> None:
    began = msgspec.structs.replace(EVENTS[0], log_id="id", **changes)
    assert isinstance(began, RunStarted)
    # A fork names the checkpoints of its parent as its own; it did not make them.
    named = [made(Checkpoint, run_id=RUN, iteration=3, path="/of/parent")] if began.parent_update else []
    (start,) = lineage([began, *named], tmp_path)
    assert [(one.namespace, one.name) for one in start.inputs] == inputs


def test_a_checkpoint_in_a_store_is_named_by_its_bucket(tmp_path: Path) -> None:
    stored = msgspec.structs.replace(CHECKPOINTS[0], path="s3://bucket/of/ckpt")
    _, event = lineage([EVENTS[0], stored], tmp_path)
    (place,) = event.outputs[0].facets["symlinks"].identifiers
    assert (place["namespace"], place["name"]) == ("s3://bucket", "of/ckpt")
