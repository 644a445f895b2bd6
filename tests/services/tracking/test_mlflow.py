"""The metrics of a recorded run, as MLflow's own client reads them."""

import json
from pathlib import Path

import pytest

from unstable_stream.api.place import Place
from unstable_stream.api.replaying import track_run
from unstable_stream.errors import RunError

pytestmark = pytest.mark.longer

RUN = "run-a"


def test_mlflow_reads_every_value_and_a_second_back_fill_adds_none(
    tracked: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client_module = pytest.importorskip("mlflow.tracking.client")
    track_run(tracked, RUN, "jsonl", tmp_path / "lines")
    text = (tmp_path / "lines" / RUN / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    given = track_run(tracked, RUN, "mlflow", tmp_path / "out").given
    assert given == len(lines)
    client = client_module.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/{RUN}/mlflow.db")

    def history() -> dict[str, list[tuple[float, int, int]]]:
        (run,) = client.search_runs([client.get_experiment_by_name("unstable_stream").experiment_id])
        assert (run.info.run_name, run.info.status) == (RUN, "FINISHED")
        return {
            name: sorted(
                (metric.value, metric.step, metric.timestamp)
                for metric in client.get_metric_history(run.info.run_id, name)
            )
            for name in run.data.metrics
        }

    found = history()
    assert sorted(step for _, step, _ in found["learner/loss"]) == [1, 2, 3, 4, 5, 6]
    wanted: dict[str, set[tuple[float, int]]] = {}
    for line in lines:
        for name, value in line["values"].items():
            wanted.setdefault(name, set()).add((value, line["time_ms"]))
    strange = "exploitability-openspiel:nim(pile_sizes='1;2')/failed"
    wanted["exploitability-openspiel:nim_pile_sizes__1_2__/failed"] = wanted.pop(strange)
    assert {name: {(row[0], row[2]) for row in rows} for name, rows in found.items()} == wanted
    assert track_run(tracked, RUN, "mlflow", tmp_path / "out").given == 0
    (tmp_path / "out" / RUN / ".mlflow.received").unlink()
    track_run(tracked, RUN, "mlflow", tmp_path / "out")
    assert history() == found, "the run is found again by its tag, and a database knows equal rows"
    with pytest.raises(RunError, match=r"mlflow: nowhere:.* does not take metrics"):
        track_run(tracked, RUN, {"type": "mlflow", "tracking_uri": "nowhere://x"}, tmp_path / "nowhere")
    no_driver = {"type": "mlflow", "tracking_uri": "mssql://me:secret@host/db"}
    with pytest.raises(RunError, match=r"mlflow: mssql://…@host/db does not take metrics"):
        track_run(tracked, RUN, no_driver, tmp_path / "nowhere")
