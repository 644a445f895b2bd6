"""One run, and several beside each other: the numbers behind the curves."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.archive.history import START_MS, made_up_run
from tests.builders import made
from tests.ui.web.conftest import shown
from unstable_stream.api.place import Place
from unstable_stream.events import Metrics, PartChanged, RunStarted, event_id


def charts(client: TestClient, base: str, query: str) -> dict[str, Any]:
    """Return the charts by key. ``Any``: JSON."""
    answer = client.get(f"{base}/charts.json?{query}")
    assert answer.status_code == 200, answer.text
    found = json.loads(answer.text)
    sections = [*found["sections"], *found["metrics"]]
    return {chart["key"]: chart for section in sections for chart in section["charts"]}


def test_the_page_says_what_was_done_and_what_went_wrong(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/runs/run-a").text
    assert "6 of 6 updates, 38 games" in page
    assert "60% of the answers are legal moves" in page
    assert "malformed &lt;b&gt;JSON&lt;/b&gt;" in page
    assert client.get(f"{base}/runs/run-z").status_code == 404


def test_what_it_won_comes_after_the_page(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/runs/run-a").text
    assert f'data-fetch="{base}/runs/run-a/results"' in page
    results = client.get(f"{base}/runs/run-a/results").text
    assert " won, " in results
    assert client.get(f"{base}/runs/run-z/results").status_code == 404


@pytest.mark.parametrize(("axis", "per_update"), [("games", 4.0), ("hours", 6 / 3600)])
def test_curves_by_games_and_by_hours(client: TestClient, base: str, axis: str, per_update: float) -> None:
    found = charts(client, base, f"run=run-a&by={axis}")
    assert found["loss"]["series"][0]["x"] == pytest.approx([per_update * update for update in range(1, 7)])
    assert found["win-rate"]["series"][0]["x"][0] == 0
    # What is told in seconds stays so.
    assert found["throughput-games"]["x_title"] == "seconds since the start"


def test_an_axis_that_there_is_not(client: TestClient, base: str) -> None:
    assert client.get(f"{base}/charts.json?run=run-a&by=luck").status_code == 400


def test_every_metric_has_a_chart(client: TestClient, base: str) -> None:
    found = charts(client, base, "run=run-a")
    assert found["metric-learner-learner/loss"]["series"][0]["y"] == pytest.approx(
        [1 / update for update in range(1, 7)]
    )
    assert found["metric-learner-update/grad_norm"]["x_title"] == "learner update"


def _reported(source: str, name: str, value: float, second: int) -> Metrics:
    uid, moment = event_id("run-c", "metrics", source, name, second), START_MS + 1000 * second
    fields = {"source": source, "values": {name: value}}
    return made(Metrics, event_id=uid, run_id="run-c", occurred_at_ms=moment, **fields)


def test_a_metric_of_a_plug_in_appears_by_itself(tmp_path: Path) -> None:
    own = [_reported("drift", "drift/far", second / 2, second) for second in range(1, 1201)]
    by_model = [_reported("pool", f"seen/{model}", 1.0, 1) for model in ("random", "ckpt-000000")]
    with shown(tmp_path, *made_up_run("run-c", updates=1), *own, *by_model) as (client, base):
        found = charts(client, base, "run=run-c")
    (drift,) = found["metric-drift-drift/far"]["series"]
    assert len(drift["x"]) == 300  # each the mean of four
    assert (drift["x"][0], drift["y"][0], drift["low"][0], drift["high"][0]) == (2.5, 1.25, 0.5, 2.0)
    assert {one["name"] for one in found["metric-pool-seen"]["series"]} == {"random", "ckpt-000000"}


def test_alerts_services_and_the_log_of_a_run(tmp_path: Path) -> None:
    """An alert of a plug-in stands until it is taken back."""
    alerts = [("<b>slow</b>", 0.5, 1), ("gone", 0.5, 1), ("gone", 0.0, 2)]
    reports = [_reported("plugin/watch", f"alerts/{name}", value, second) for name, value, second in alerts]
    reports += [_reported("launcher", f"services/learner/{name}", 2.0, 1) for name in ("up", "restarts")]
    part = {"part": "rollout-1", "change": "lost", "host": "gpu-3", "reason": "<b>preempted</b>"}
    lost = made(PartChanged, event_id="lost", run_id="run-c", **part)
    logs = Place.at(tmp_path).data.service_logs("run-c")
    logs.mkdir(parents=True)
    note = "2026-01-01T00:00:00.000+00:00 learner died: ValueError: <b>no</b> weights; starting it again\n"
    (logs / "launcher.log").write_text(note, encoding="utf-8")
    with shown(tmp_path, *made_up_run("run-c", updates=1), *reports, lost) as (client, base):
        page = client.get(f"{base}/runs/run-c").text
        health = client.get(f"{base}/runs/run-c/health").text
    assert '&lt;b&gt;slow&lt;/b&gt;: 0.5 <span class="quiet">(plugin/watch' in page
    assert "gone: " not in page
    assert "learner was restarted 2 times" in page
    assert "<td>lost</td><td>gpu-3</td><td>&lt;b&gt;preempted&lt;/b&gt;</td>" in page
    assert "no event log" in health
    assert "ValueError: &lt;b&gt;no&lt;/b&gt; weights" in health


def test_several_runs_lie_over_each_other(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/compare?run=run-a&run=run-b").text
    assert "learner.iterations" in page
    assert "2 of 2 runs chosen" in page
    found = charts(client, base, "run=run-a&run=run-b&by=games")
    assert [len(one["x"]) for one in found["loss"]["series"]] == [6, 2]
    assert [one["name"] for one in found["loss"]["series"]] == ["made up run-a", "made up run-b"]
    assert "Compare runs" in client.get(f"{base}/compare").text


def test_forks_are_a_tree(tmp_path: Path) -> None:
    parent, config = {"parent_run_id": "run-c", "parent_update": 1}, {"learner": {"iterations": 9}}
    later = START_MS + 60_000
    fork = made(RunStarted, run_id="run-d", occurred_at_ms=later, name="child", config=config, **parent)
    with shown(tmp_path, *made_up_run("run-c", updates=1), fork) as (client, base):
        page = client.get(f"{base}/compare?run=run-d").text
        assert page.index("<h2>Forks</h2>") < page.index("↳ at update 1:")
        assert "1 of 9 updates, 0 games" in client.get(f"{base}/").text
