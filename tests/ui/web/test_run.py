"""One run, and several beside each other: the numbers behind the curves."""

import csv
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.archive.history import START_MS, made_up_run
from tests.builders import made
from tests.history.views.conftest import ATTACK
from tests.ui.web.conftest import shown
from unstable_stream.api.place import Place
from unstable_stream.events import Metrics, PartChanged, ProcessCost, RunStarted, event_id


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
    missing = client.get(f"{base}/runs/run-z")
    assert missing.status_code == 404
    assert f'<a href="{base}/games">Games</a>' in re.sub(r"\s+", " ", missing.text).replace(" >", ">")


def test_what_it_won_comes_after_the_page(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/runs/run-a").text
    assert f'data-fetch="{base}/runs/run-a/results"' in page
    results = client.get(f"{base}/runs/run-a/results").text
    assert " won, " in results
    assert "Waiting</th>" in client.get(f"{base}/runs/run-a/cost").text
    assert client.get(f"{base}/runs/run-z/results").status_code == 404


def test_a_policy_that_was_evaluated_once_and_players_that_met_have_results(tmp_path: Path) -> None:
    met = [event for event in made_up_run("run-c", updates=2) if getattr(event, "split", "") != "eval"]
    with shown(tmp_path / "once", *made_up_run("run-c", updates=0)) as (client, base):
        results = client.get(f"{base}/runs/run-c/results").text
        assert '<td data-label="95 % interval">' in results
        page = client.get(f"{base}/runs/run-c").text
        lost = unescape(re.findall(r'href="([^"]*result=loss[^"]*)"', page)[0])
        games = client.get(lost).text
    assert "No game fits" not in games
    with shown(tmp_path / "met", *met) as (client, base):
        results = client.get(f"{base}/runs/run-c/results").text
    assert "is first, stronger than" in results


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


def test_the_numbers_of_every_plot_are_files(client: TestClient, base: str) -> None:
    """Without a script: each link of the page leads to the numbers of its chart."""
    runs = "run=run-a&run=run-b&by=games"
    page = client.get(f"{base}/numbers?{runs}").text
    links = [unescape(link) for link in re.findall(r'href="([^"]*charts\.csv[^"]*)"', page)]
    drawn = charts(client, base, runs)
    assert len(links) == len(drawn)
    for link, chart in zip(links, drawn.values(), strict=True):
        answer = client.get(link)
        name = re.fullmatch(r'attachment; filename="([\w.-]+)\.csv"', answer.headers["content-disposition"])
        assert name is not None, link
        columns, *rows = csv.reader(answer.text.splitlines())
        if chart["matrix"] is not None:
            assert columns == ["player", "against", "score", "from", "to", "games"]
            assert len(rows) == sum(value is not None for row in chart["matrix"]["values"] for value in row)
            continue
        assert len(rows) == sum(len(one["x"]) for one in chart["series"])
        first, at = chart["series"][0], len(chart["series"]) > 1
        assert rows[0][at : at + 2] == [str(first["x"][0]), str(first["y"][0])]
    (one,) = (link for link in links if link.endswith("chart=win-rate"))
    assert client.get(one).text.splitlines()[0] == "line,training games played,games won,from,to,games"
    refused = client.get(f"{base}/charts.csv?{runs}&chart=lost")
    assert refused.status_code == 400
    assert "did you mean" in refused.text


def test_files_of_hostile_metrics_have_harmless_names(tmp_path: Path) -> None:
    name = f"../{ATTACK}\r\nx: y"
    with shown(tmp_path, *made_up_run("run-c", updates=1), _reported(ATTACK, name, 1.0, 1)) as (client, base):
        page = client.get(f"{base}/numbers?run=run-c").text
        assert ATTACK not in page
        link = next(link for link in re.findall(r'href="([^"]*)"', page) if "script" in link)
        answer = client.get(unescape(link))
    assert answer.status_code == 200
    assert re.fullmatch(r'attachment; filename="[\w.-]+\.csv"', answer.headers["content-disposition"])
    assert "x" not in answer.headers


def test_what_processes_used_over_time(tmp_path: Path) -> None:
    """Each rate is of the time since the report before, of the same life of the process."""

    def cost(incarnation: str, second: int, cpu_s: float, memory: int) -> ProcessCost:
        moment = START_MS + 1000 * second
        uid = event_id("run-c", "cost", incarnation, second)
        head = {"event_id": uid, "run_id": "run-c", "occurred_at_ms": moment, "process": "learner"}
        used = {"wall_s": float(second), "cpu_s": cpu_s, "peak_memory_bytes": memory}
        return made(ProcessCost, incarnation=incarnation, **head, **used)

    reports = [cost("a", 0, 2.0, 10**8), cost("a", 60, 92.0, 10**9), cost("a", 120, 122.0, 10**9)]
    reports += [cost("b", 200, 1.0, 10**8), cost("b", 210, 11.0, 10**8)]
    with shown(tmp_path, *made_up_run("run-c", updates=1), *reports) as (client, base):
        found = charts(client, base, "run=run-c")
    (cores,) = found["used-cores"]["series"]
    assert cores["name"] == "learner"
    assert (cores["x"], cores["y"]) == ([60.0, 120.0, 210.0], [1.5, 0.5, 1.0])
    (memory,) = found["used-memory_mb"]["series"]
    assert memory["y"] == [100.0, 1000.0, 1000.0, 100.0, 100.0]
    assert found["used-checkpoints_mb"]["series"]
    assert "used-gpus" not in found  # it held none


def test_seeds_are_drawn_as_their_mean(tmp_path: Path) -> None:
    with shown(tmp_path, *made_up_run("run-c", updates=2), *made_up_run("run-d", updates=2)) as (
        client,
        base,
    ):
        found = charts(client, base, "run=run-c&run=run-d")
        alone = charts(client, base, "run=run-c")
    (mean,) = found["groups-grad_norm"]["series"]
    assert (mean["x"], mean["y"]) == ([1.0, 2.0], [0.5, 1.0])
    assert mean["low"] == mean["high"] == mean["y"]  # the seeds agree
    assert not any(key.startswith("groups-") for key in alone)


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
    assert f'{base}/diff?run=run-a&run=run-b">Where do the two part?</a>' in page
    assert "learner.iterations" in page
    assert "2 of 2 runs chosen" in page
    found = charts(client, base, "run=run-a&run=run-b&by=games")
    assert [len(one["x"]) for one in found["loss"]["series"]] == [6, 2]
    assert [one["name"] for one in found["loss"]["series"]] == ["made up run-a", "made up run-b"]
    assert "Compare runs" in client.get(f"{base}/compare").text


def test_the_page_of_two_runs_says_where_they_part(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/diff?run=run-a&run=run-b").text
    assert "First differ the <b>settings and code</b>: learner.iterations" in page
    assert "<pre>learner.iterations = 6</pre>" in page
    assert "<code>unstable-stream diff run-a run-b</code>" in page
    for wrong in ("run=run-a", "run=run-a&run=run-c", "run=run-a&run=run-a", "run=%3Cscript%3E&run=run-a"):
        refused = client.get(f"{base}/diff?{wrong}")
        assert refused.status_code == 400
        assert "<script>&" not in refused.text


def test_forks_are_a_tree(tmp_path: Path) -> None:
    parent, config = {"parent_run_id": "run-c", "parent_update": 1}, {"learner": {"iterations": 9}}
    later = START_MS + 60_000
    fork = made(RunStarted, run_id="run-d", occurred_at_ms=later, name="child", config=config, **parent)
    with shown(tmp_path, *made_up_run("run-c", updates=1), fork) as (client, base):
        page = client.get(f"{base}/compare?run=run-d").text
        assert page.index("<h2>Forks</h2>") < page.index("↳ at update 1:")
        assert "1 of 9 updates, 0 games" in client.get(f"{base}/").text


def test_names_of_groups_stay_text(tmp_path: Path) -> None:
    hostile = [made(RunStarted, run_id=f"run-{name}", name=f"{ATTACK}{name}") for name in ("c", "d")]
    with shown(tmp_path, *hostile) as (client, base):
        page = client.get(f"{base}/compare?run=run-c&run=run-d&baseline=%3Cscript%3E").text
    assert "&lt;script&gt;document.title=" in page
    assert ATTACK not in page
    assert "no evaluation" in page
