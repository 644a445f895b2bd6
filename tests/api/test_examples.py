"""The examples that show the API run, and the pages about it say what the code says."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import unstable_stream as us
from tools.pages.api_reference import render

pytestmark = pytest.mark.longer

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_the_reference_has_every_name() -> None:
    page = render()
    missing = {name for name in dir(us) if not name.startswith("_") and f"`{name}" not in page}
    assert missing == {"algorithms", "reward_transformations"}


def test_the_quick_start_script_trains(tmp_path: Path) -> None:
    program = [sys.executable, str(EXAMPLES / "quick_start.py")]
    small = ["--iterations", "2", "--batch-size", "32", "--num-workers", "16", "--backend", "inline"]
    done = subprocess.run(
        [*program, *small, "--data", str(tmp_path)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "TicTacToe-v0-train" in done.stdout
    assert "won" in done.stdout
    (status,) = us.list_runs(tmp_path)
    assert (status.name, status.state, status.updates) == ("demo", "completed", 2)
    run = us.open_run("demo", tmp_path)
    assert run.audit().ok
    evaluated = run.sql("SELECT DISTINCT env_id FROM game_outcomes WHERE split = 'eval' ORDER BY 1").rows()
    assert evaluated == [("SimpleTak-v0-train",), ("TicTacToe-v0-train",)]
    # Every documented namespace is there, however short the run, and the pool is told as it ended.
    names = {name for (name,) in run.sql("SELECT DISTINCT name FROM metrics").rows()}
    for prefix in ("collection-", "evaluation-", "inference/", "learner/", "model-pool/"):
        assert any(name.startswith(prefix) for name in names), prefix
    pool = "SELECT value FROM metrics WHERE name = 'model-pool/checkpoints' ORDER BY occurred_at"
    assert run.sql(pool).rows()[-1] == (3.0,)


@pytest.mark.long
@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(EXAMPLES / "first_run.ipynb", as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Jupyter's own libraries
        nbclient.NotebookClient(
            notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [output["data"] for cell in cells for output in cell.outputs if "data" in output]
    assert any(data.get("text/plain") == "(True, True)" for data in shown)
    assert any("application/vnd.plotly.v1+json" in data for data in shown)
    assert shown[-1]["text/plain"].endswith("completed>")
    assert len(us.list_runs(tmp_path / "unstable-data")) == 2
