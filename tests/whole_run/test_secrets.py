"""A key from the environment goes to its endpoint, and into no event, log line, table or report."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.inference.endpoint import KEY, KEY_ENV, Answer, Endpoint, completion
from tests.inference.endpoint import endpoint as endpoint
from tests.services.workers.test_game_schedule import config
from unstable_stream.archive import query
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.launcher import Backend, launch
from unstable_stream.ui.cli import app

pytestmark = [pytest.mark.longer, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "backend", ["inline", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.long])]
)
async def test_a_key_stays_out_of_everything_that_is_kept(
    tmp_path: Path, backend: Backend, endpoint: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    async def answer(number: int, _: dict[str, Any]) -> Answer:
        if number % 4 == 3:
            return 400, {"error": {"message": f"the key {KEY} may not use this model"}}
        return completion(f"[{number % 9}]", "stop")

    endpoint.answer = answer
    opponent = {"name": "o", "kind": "openai", "base_url": endpoint.url, "api_key_env": KEY_ENV}
    settings = config(
        sampling={"max_tokens": 2},
        evaluation={"opponents": [opponent | {"template": "default"}], "max_eval_games_per_ckpt": 8},
        learner={"iterations": 1, "batch_size": 24, "mini_batch_size": 24},
    )
    data = DataDir(tmp_path)
    launched = await launch(settings, data, backend=backend)
    assert launched.outcome == "completed"
    assert all(f"Bearer {KEY}" in head for head in endpoint.heads)
    assert len(endpoint.heads) > 8
    ends = query(
        data.archive, "SELECT type, count(*) FROM events WHERE type LIKE 'game-%' GROUP BY type"
    ).rows
    assert dict(ends)["game-abandoned"] > 0, "no refusal was met"
    report = tmp_path / "report.html"
    result = CliRunner().invoke(
        app, ["report", launched.run_id, "--data", str(tmp_path), "--out", str(report)]
    )
    assert result.exit_code == 0, result.output
    shown = capfd.readouterr()
    assert KEY not in shown.out + shown.err + result.output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert report in files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    # DuckDB may compress what it stores, so the archive is also asked.
    (found,) = query(data.archive, f"SELECT count(*) FROM events WHERE contains(value, '{KEY}')").rows
    assert found == (0,)
