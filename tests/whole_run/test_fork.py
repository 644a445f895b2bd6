"""A finished run is forked on the command line and the fork trains on."""

import json
import shutil
from pathlib import Path

import pytest

from tests.whole_run.conftest import UPDATES, FinishedRun
from tests.whole_run.processes import run_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AT = 2


def test_a_fork_goes_on_from_a_checkpoint_of_its_parent(finished_run: FinishedRun, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(finished_run.data, data)
    forked = run_command(
        data, "fork", finished_run.run_id, "--at", str(AT), "--set", "name=forked", "--quiet"
    )
    assert forked.returncode == 0, forked.stderr

    def rows(query: str) -> list[dict[str, object]]:
        answer = run_command(data, "sql", query, "--json")
        assert answer.returncode == 0, answer.stderr
        found: list[dict[str, object]] = json.loads(answer.stdout)
        return found

    (run,) = rows("SELECT run_id, parent_run_id, parent_update FROM runs WHERE name = 'forked'")
    assert (run["parent_run_id"], run["parent_update"]) == (finished_run.run_id, AT)
    fork = run["run_id"]
    updates = rows(f"SELECT \"update\" FROM updates WHERE run_id = '{fork}' ORDER BY 1")
    assert [row["update"] for row in updates] == list(range(AT + 1, UPDATES + 1))
    (games,) = rows(
        f"""SELECT (SELECT min(game_index) FROM games WHERE run_id = '{fork}' AND split = 'train') AS first,
                   (SELECT count(*) FROM games WHERE run_id = '{finished_run.run_id}' AND split = 'train'
                    AND started_at <= (SELECT occurred_at FROM checkpoints WHERE iteration = {AT}
                                       AND run_id = '{finished_run.run_id}')) AS before"""
    )
    assert games["first"] == games["before"]
    for run_id in (fork, finished_run.run_id):
        for check in ("audit", "verify"):
            checked = run_command(data, check, str(run_id))
            assert checked.returncode == 0, checked.stdout
