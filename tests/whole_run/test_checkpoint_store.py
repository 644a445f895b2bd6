"""A run whose checkpoints are in a store: trained, proven, forked, evaluated and pushed."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import unstable_stream as us
from tests.whole_run.processes import DEADLINE_S
from unstable_stream.errors import ConfigError
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE
from unstable_stream.log.stores.address import joined
from unstable_stream.log.stores.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * DEADLINE_S)]


def settings(iterations: int) -> dict[str, Any]:
    """Those of a small run in this process."""
    return {
        "model": "tiny-player",
        "train_envs": ["TicTacToe-v0-train"],
        "lora": {"lora_rank": 4, "lora_alpha": 8},
        "learner": {"batch_size": 32, "parameters": "lora"},
        "iterations": iterations,
        "collector": {"num_workers": 8, "num_eval_workers": 0},
        "backend": "inline",
    }


def stored_paths(run: us.Run) -> list[str]:
    """Where the checkpoints of a run are, by update."""
    found = run.sql("SELECT path FROM checkpoints WHERE path IS NOT NULL ORDER BY iteration")
    return [str(path) for (path,) in found]


@pytest.mark.long
def test_everything_that_reads_checkpoints_reads_them_from_the_store(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    run = us.build(ckpt_root=s3, data=data, **settings(2))
    run.start()
    paths = stored_paths(run)
    assert len(paths) == 2
    assert all(path.startswith(f"{s3}/{run.id}/") for path in paths)
    assert not (data / "checkpoints").exists()

    # As on another host, which has the log and not the cache.
    shutil.rmtree(tmp_path / "cache")
    audited, verified = run.audit(), run.verify(games=False)
    assert audited.ok, audited
    assert verified.ok, verified
    assert {check.name: check.compared for check in verified.checks}["checkpoint files"] == 2

    fork = run.fork(at=1, iterations=2)
    fork.start()
    assert fork.audit().ok
    played = us.evaluation(f"{run.id}@2", against=f"{run.id}@1", games=2, data=data)
    played.start()
    assert played.audit().ok
    run.push(tmp_path / "pushed", at=2)
    assert (tmp_path / "pushed" / WEIGHTS_FILE).is_file()
    begun = us.build(ckpt_root=s3, initial_lora_path=paths[0], data=data, **settings(1))
    begun.start()
    assert begun.audit().ok

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{os.environ['AWS_ENDPOINT_URL']}/")  # a client of its own
    with pytest.raises(ConfigError, match=r"learner\.ckpt_root: s3://.*permission denied"):
        us.build(ckpt_root=s3, data=data, **settings(1))


@pytest.mark.long
def test_a_checkpoint_that_was_changed_in_the_store_is_found(s3: str, tmp_path: Path) -> None:
    run = us.build(ckpt_root=s3, data=tmp_path / "data", **settings(1))
    run.start()
    (path,) = stored_paths(run)
    Store(path).write(WEIGHTS_FILE, b"of somebody else")
    (problem,) = run.audit().problems
    assert problem.startswith("checkpoint file altered")
    assert joined(path, WEIGHTS_FILE) in problem
    Store(path).remove(WEIGHTS_FILE)
    (problem,) = run.audit().problems
    assert problem.startswith("checkpoint file missing")
