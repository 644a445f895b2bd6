"""A run with code of the user's own in every place, and who may load that code afterwards."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import PROGRAM, run_command
from tests.inference.byte_model import build_byte_model
from unstable_stream.archive import query
from unstable_stream.extensions import ALLOW_CODE

pytestmark = pytest.mark.longer

EXAMPLES = Path(__file__).parents[2] / "examples" / "extensions"
CONFIG = """
name = "own"
model = "./bytes"
backend = "inline"
algorithm = "algorithm:Vanilla"
consumers = ["consumer.py:mean_length"]
trackers = ["jsonl", { type = "tracker.py:Printer", only = "collection" }]

[[train_envs]]
env_id = "environment:Stones(stones=6)"
template = "template.py:Terse"

[collector]
num_workers = 8
num_eval_workers = 4
max_turns = 12

[sampling]
max_tokens = 4

[model_pool]
sample_mode = "opponent_sampling.py:a_little_better"
rating_system = "rating_system.py:Points"
fixed = [{ name = "careful", player = "own_opponent.py:takes_one" }]

[evaluation]
opponents = ["random-legal"]
max_eval_games_per_ckpt = 2
every = 2

[rewards]
final = ["final_transformation.py:winner_takes_all"]
step = ["step_transformation.py:Discounted(gamma=0.9)"]
sampling = ["NormalizeRewards", "sampling_transformation.py:clipped(limit=1.5)"]

[buffer]
strategy = "buffer_strategy.py:surprising_first"

[learner]
iterations = 2
batch_size = 8
mini_batch_size = 8
"""


def command(cwd: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != ALLOW_CODE}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=110,
        env=environment | variables,
    )


def shown(cwd: Path, sql: str) -> list[dict[str, Any]]:
    return list(query(cwd / "unstable-data" / "archive.duckdb", sql).dicts())


@pytest.mark.timeout(400)
def test_a_run_made_of_own_code_is_recorded_verified_and_confined(tmp_path: Path) -> None:
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, tmp_path)
    (tmp_path / "own_opponent.py").write_text("def takes_one(observation: str) -> str:\n    return '[1]'\n")
    (tmp_path / "run.toml").write_text(CONFIG)
    build_byte_model(tmp_path / "bytes")
    done = command(tmp_path, "train", "run.toml", "--quiet")
    assert done.returncode == 0, done.stderr

    (started,) = shown(tmp_path, "SELECT extensions FROM run_events WHERE type = 'run-started'")
    used = started["extensions"]
    used = json.loads(used) if isinstance(used, str) else used
    assert {use["kind"]: use["target"] for use in used} == {
        "environment": "environment:Stones",
        "template": f"{tmp_path}/template.py:Terse",
        "opponent": f"{tmp_path}/own_opponent.py:takes_one",
        "final_transformation": f"{tmp_path}/final_transformation.py:winner_takes_all",
        "step_transformation": f"{tmp_path}/step_transformation.py:Discounted",
        "sampling_transformation": f"{tmp_path}/sampling_transformation.py:clipped",
        "opponent_sampling": f"{tmp_path}/opponent_sampling.py:a_little_better",
        "rating_system": f"{tmp_path}/rating_system.py:Points",
        "buffer_strategy": f"{tmp_path}/buffer_strategy.py:surprising_first",
        "algorithm": "algorithm:Vanilla",
        "consumer": f"{tmp_path}/consumer.py:mean_length",
        "tracker": f"{tmp_path}/tracker.py:Printer",
    }
    assert all(len(use["sha256"]) == 64 for use in used)
    outcomes = shown(tmp_path, "SELECT DISTINCT env_id FROM game_outcomes")
    assert outcomes == [{"env_id": "environment:Stones(stones=6)"}]

    (games,) = shown(tmp_path, "SELECT count(*) AS n FROM game_outcomes")
    (emitted,) = shown(tmp_path, "SELECT count(*) AS n FROM metrics WHERE source = 'plugin/mean_length'")
    assert emitted == games, "every game was counted before the run's end was recorded"
    (file,) = (tmp_path / "unstable-data" / "tracking").glob("own-*/metrics.jsonl")
    tracked = [json.loads(line) for line in file.read_text().splitlines()]
    assert {"launcher", "plugin/mean_length", "tracker"} <= {line["source"] for line in tracked}
    env = "environment:Stones(stones=6)"
    values = {name: value for line in tracked for name, value in line["values"].items()}
    assert {
        f"collection-{env}/win-rate",
        f"evaluation-{env}/win-rate/random-legal",
        "learner/loss",
    } <= values.keys()
    counted = shown(tmp_path, "SELECT split, count(*) AS n FROM game_outcomes GROUP BY split ORDER BY split")
    assert [values[f"{prefix}-{env}/games"] for prefix in ("evaluation", "collection")] == [
        split["n"] for split in counted
    ], "the last games too"
    more = run_command("track", "own", "--to", "jsonl", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    again = [json.loads(line) for line in file.read_text().splitlines()]
    assert again[: len(tracked)] == tracked
    late = {line["source"] for line in again[len(tracked) :]}
    assert late <= {"launcher", "archiver"}, "what the run told after its trackers had ended"

    points = command(tmp_path, "rerate", "own", "--system", "rating_system.py:Points", "--json", "--dry-run")
    assert points.returncode == 0, points.stderr
    rows = json.loads(points.stdout)
    assert rows
    assert all(float(row["mu"]) * 2 == int(float(row["mu"]) * 2) for row in rows), "wins and half wins"

    verified = command(tmp_path, "verify", "own")
    assert (verified.returncode, verified.stderr) == (0, ""), "its starter may load its code"

    stranger = tmp_path / "stranger"
    shutil.copytree(tmp_path / "unstable-data", stranger)
    shutil.rmtree(stranger / "code")
    refused = command(tmp_path, "verify", "own", "--data", str(stranger))
    assert refused.returncode == 1
    assert "was not allowed to load it: if you trust it, give --allow-code" in refused.stderr
    assert "\n" not in refused.stderr.strip()
    allowed = command(tmp_path, "verify", "own", "--data", str(stranger), "--allow-code", "*")
    assert (allowed.returncode, allowed.stderr) == (0, "")

    # The same code in other words: everything is still the same, and it is said.
    path = tmp_path / "final_transformation.py"
    path.write_text(path.read_text() + "\n# another\n")
    noted = command(tmp_path, "verify", "own", "--no-games")
    assert noted.returncode == 0
    assert "note: final transformation" in noted.stderr
    assert "is another than the run used: sha256" in noted.stderr


def test_an_engine_of_ones_own_plays_and_is_trained_on(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "engine.py", tmp_path)
    settings = {
        "backend": "inline",
        "engine": "{type='engine.py:Constant', token=5}",
        "learner.iterations": 1,
        "learner.batch_size": 8,
        "learner.mini_batch_size": 8,
        "collector.num_workers": 8,
        "evaluation.first_last_games": 2,
        "evaluation.max_eval_games_per_ckpt": 2,
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = command(tmp_path, "quickstart", *options)
    assert done.returncode == 0, done.stderr
    (turns,) = shown(
        tmp_path,
        "SELECT count(*) > 8 AS many, bool_and(completion_token_ids = [5]) AS constant "
        "FROM turns WHERE completion_token_ids IS NOT NULL",
    )
    assert turns == {"many": True, "constant": True}
    audit = run_command("audit", "quickstart", cwd=tmp_path)
    assert audit.returncode == 0, audit.stdout + audit.stderr
