"""Every metric of docs/metrics.md appears by itself on the page of a run that has reported it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from starlette.testclient import TestClient

from tests.archive.history import START_MS, made_up_run, stored
from tests.ui.web.conftest import RECORDED, client_of
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter, query
from unstable_stream.events import Event, LearnerUpdate, Metrics, event_id
from unstable_stream.ui.web import Site

_PAGE: Final = Path(__file__).parents[3] / "docs" / "metrics.md"
_RUN: Final = "run-c"
_UPDATE: Final = "update"
"""Instead of a source: in the ``metrics`` of each learner update."""

# By the heading of a table and its column of names.
_SOURCES: Final = {
    ("Of a learner update", "Name"): _UPDATE,
    ("Of the games since the update before", "Name"): _UPDATE,
    ("Of games, as rolling means", "`collection-ENV/…`, `evaluation-ENV/…`"): "tracker",
    ("Of exploitability", "`exploitability-GAME/…`"): "exploitability",
    ("Of the engines", "Name"): "engine-0",
    ("Of the model pool", "Name"): "model-pool",
}
_IN_SENTENCES: Final = (
    ("tracker", "learner/loss"),
    ("tracker", "learner/duration_s"),
    ("learner", "stores/learner/wait_s"),
)
_EXAMPLES: Final = {
    "ENV": "SimpleTak-v0-train",
    "OPPONENT": "random-legal",
    "MODEL": "ckpt-000001",
    "GAME": "openspiel:kuhn_poker",
    "FINDING": "no-answer",
    "SERVICE": "learner",
    "N": "0",
}


def _tables() -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each row of a table: the heading above it, the titles of the columns, and the cells."""
    heading = ""
    titles: list[str] = []
    for line in _PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            titles = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not titles:
            titles = cells
        elif set(line) - set("|-"):
            yield heading, titles, cells


def _documented() -> Iterator[tuple[str, str]]:
    """Yield the source and the name of each metric, with examples for what stands in capitals."""
    yield from _IN_SENTENCES
    for heading, titles, cells in _tables():
        if titles[0] == "Source":
            source, names = cells[0].strip("`"), cells[1]
        elif (heading, titles[0]) in _SOURCES:
            source, names = _SOURCES[heading, titles[0]], cells[0]
        else:
            assert titles[0] == "Tracker", f"{heading}: which source are the names under {titles[0]} of?"
            continue
        for name in re.findall("`([^`]+)`", names):
            for prefix in re.findall("`([^`]+/)…`", titles[0]) or [""]:
                if prefix.startswith("collection") and "evaluation only" in cells[-1]:
                    continue
                yield "gpus" if name.startswith("gpu/") else source, _with_examples(prefix + name)


def _with_examples(name: str) -> str:
    return re.sub(r"(?<![A-Za-z])[A-Z]+(?![A-Za-z])", lambda word: _EXAMPLES[word[0]], name)


def _reporting(reported: dict[tuple[str, str], float]) -> Iterator[Event]:
    """Yield a made-up run in which each of these was reported."""
    of_updates = {name: value for (source, name), value in reported.items() if source == _UPDATE}
    for event in made_up_run(_RUN, updates=2):
        if isinstance(event, LearnerUpdate):
            yield msgspec.structs.replace(event, metrics=of_updates)
        elif not isinstance(event, Metrics):
            yield event
    for (source, name), value in reported.items():
        if source != _UPDATE:
            yield Metrics(
                event_id=event_id(_RUN, "metrics", source, name),
                run_id=_RUN,
                occurred_at_ms=START_MS + 1000,
                source=source,
                values={name: value},
            )


def _drawn(client: TestClient, base: str, run: str) -> dict[tuple[str, str], list[float]]:
    """Return the values that the run's page draws, by source and name."""
    page = client.get(f"{base}/runs/{run}").text
    address = re.search(r'id="charts"[^>]* data-[a-z]+="([^"]*charts\.json[^"]*)"', page)
    assert address is not None, "the page draws no charts"
    found = json.loads(client.get(address[1].replace("&amp;", "&")).text)
    drawn = {}
    for section in found["metrics"]:
        source = section["title"].removeprefix("Reported by ")
        for chart in section["charts"]:
            for series in chart["series"]:
                # What each model has shares a chart, in which lines have the models' names.
                title, line = chart["title"], series["name"]
                drawn[source, title if line == title else f"{title}/{line}"] = series["y"]
    return drawn


def test_every_documented_metric_appears_by_itself(tmp_path: Path) -> None:
    values = {which: 1.0 + place for place, which in enumerate(sorted(set(_documented())))}
    assert len(values) > 90
    place = Place.at(tmp_path)
    with ArchiveWriter(place.archive, timeout_s=60) as writer:
        writer.write(stored(list(_reporting(values))))
    base = f"/{tmp_path.name}"
    with client_of(place) as client:
        drawn = _drawn(client, base, _RUN)
        page = client.get(f"{base}/runs/{_RUN}").text
    for (source, name), value in values.items():
        if source == _UPDATE:
            assert drawn["learner", f"update/{name}"] == [value, value], name
        elif name.startswith("services/"):  # as health: whether it is up, and how often it was restarted
            assert '<th scope="row">learner</th>' in page
            assert name.endswith("/up") or f"learner was restarted {value:.0f} times" in page
        else:
            assert drawn[source, name] == [value], name


def test_whatever_a_run_has_reported_appears_by_itself(recorded: Place) -> None:
    with client_of(recorded) as client:
        drawn = _drawn(client, f"/{next(iter(Site([recorded]).shelves))}", RECORDED)
    rows = query(
        recorded.archive,
        "SELECT DISTINCT unnest(map_keys(metrics)) FROM updates WHERE run_id = $1",
        [RECORDED],
    ).rows
    assert rows
    for (name,) in rows:
        assert ("learner", f"update/{name}") in drawn
