"""A run with code of the user's own in every place, and who may load that code afterwards."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import run_command
from tests.inference.byte_model import build_byte_model
from unstable_stream.archive import query
from unstable_stream.extensions import ALLOW_CODE, KINDS

pytestmark = pytest.mark.longer

EXAMPLES = Path(__file__).parents[2] / "examples" / "extensions"
CONFIG = """
name = "own"
model = "./bytes"
backend = "inline"
algorithm = "algorithm:Vanilla"
consumers = ["consumer.py:mean_length"]
trackers = ["jsonl", { type = "tracker.py:Printer", only = "collection" }]
train_envs = [{ env_id = "environment:Stones(stones=6)", template = "template.py:Terse" }]
collector = { num_workers = 8, num_eval_workers = 4, max_turns = 12 }
sampling.max_tokens = 4
evaluation = { opponents = ["random-legal"], max_eval_games_per_ckpt = 2, every = 2 }
buffer.strategy = "buffer_strategy.py:surprising_first"
engine = { type = "engine.py:Constant", token = 16 }
learner = { iterations = 2, batch_size = 8, mini_batch_size = 8 }

[model_pool]
sample_mode = "opponent_sampling.py:a_little_better"
rating_system = "rating_system.py:Points"
fixed = [{ name = "careful", player = "own_opponent.py:takes_one" }]

[rewards]
final = ["final_transformation.py:winner_takes_all"]
step = ["step_transformation.py:Discounted(gamma=0.9)"]
sampling = ["NormalizeRewards", "sampling_transformation.py:clipped(limit=1.5)"]
"""


def shown(cwd: Path, sql: str) -> list[dict[str, Any]]:
    return list(query(cwd / "unstable-data" / "archive.duckdb", sql).dicts())


@pytest.mark.timeout(400)
def test_a_run_made_of_own_code_is_recorded_verified_and_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOW_CODE, raising=False)
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, tmp_path)
    (tmp_path / "own_opponent.py").write_text("def takes_one(observation: str) -> str:\n    return '[1]'\n")
    (tmp_path / "run.toml").write_text(CONFIG)
    build_byte_model(tmp_path / "bytes")
    done = run_command("train", "run.toml", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    (started,) = shown(tmp_path, "SELECT extensions FROM run_events WHERE type = 'run-started'")
    used = started["extensions"]
    used = json.loads(used) if isinstance(used, str) else used
    modules = {"environment:Stones", "algorithm:Vanilla"}
    in_files = {f"{tmp_path}/{target}" for target in re.findall(r"\w+\.py:\w+", CONFIG)}
    assert {use["target"] for use in used} == modules | in_files
    assert {use["kind"] for use in used} == set(KINDS)
    assert all(len(use["sha256"]) == 64 for use in used)
    outcomes = shown(tmp_path, "SELECT DISTINCT env_id FROM game_outcomes")
    assert outcomes == [{"env_id": "environment:Stones(stones=6)"}]

    constant = "SELECT DISTINCT list_distinct(completion_token_ids) AS ids FROM turns"
    assert shown(tmp_path, constant) == [{"ids": [16]}], "the engine played, and was trained on"
    (games,) = shown(tmp_path, "SELECT count(*) AS n FROM game_outcomes")
    (emitted,) = shown(tmp_path, "SELECT count(*) AS n FROM metrics WHERE source = 'plugin/mean_length'")
    assert emitted == games, "every game was counted before the run's end was recorded"
    (file,) = (tmp_path / "unstable-data" / "tracking").glob("own-*/metrics.jsonl")
    tracked = [json.loads(line) for line in file.read_text().splitlines()]
    assert {"plugin/mean_length", "tracker"} <= {line["source"] for line in tracked}
    env = "environment:Stones(stones=6)"
    values = {name: value for line in tracked for name, value in line["values"].items()}
    rates = {f"collection-{env}/win-rate", f"evaluation-{env}/win-rate/random-legal"}
    assert rates | {"learner/loss"} <= values.keys()
    counted = shown(tmp_path, "SELECT split, count(*) AS n FROM game_outcomes GROUP BY split ORDER BY split")
    told = [values[f"{prefix}-{env}/games"] for prefix in ("evaluation", "collection")]
    assert told == [split["n"] for split in counted], "the last games too"
    more = run_command("track", "own", "--to", "jsonl", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    again = [json.loads(line) for line in file.read_text().splitlines()]
    assert again[: len(tracked)] == tracked
    late = {line["source"] for line in again[len(tracked) :]}
    assert late <= {"launcher", "archiver"}, "what the run told after its trackers had ended"

    options = ("--system", "rating_system.py:Points", "--json", "--dry-run")
    points = run_command("rerate", "own", *options, cwd=tmp_path)
    assert points.returncode == 0, points.stderr
    rows = json.loads(points.stdout)
    assert rows
    assert all(float(row["mu"]) * 2 == int(float(row["mu"]) * 2) for row in rows), "wins and half wins"

    verified = run_command("verify", "own", cwd=tmp_path)
    assert (verified.returncode, verified.stderr) == (0, ""), "its starter may load its code"

    stranger = tmp_path / "stranger"
    shutil.copytree(tmp_path / "unstable-data", stranger)
    shutil.rmtree(stranger / "code")
    refused = run_command("verify", "own", "--data", str(stranger), cwd=tmp_path)
    assert refused.returncode == 1
    assert "was not allowed to load it: if you trust it, give --allow-code" in refused.stderr
    assert "\n" not in refused.stderr.strip()
    allowed = run_command("verify", "own", "--data", str(stranger), "--allow-code", "*", cwd=tmp_path)
    assert (allowed.returncode, allowed.stderr) == (0, "")

    # The same code in other words: everything is still the same, and it is said.
    path = tmp_path / "final_transformation.py"
    path.write_text(path.read_text() + "\n# another\n")
    noted = run_command("verify", "own", "--no-games", cwd=tmp_path)
    assert noted.returncode == 0
    assert "note: final transformation" in noted.stderr
    assert "is another than the run used: sha256" in noted.stderr
