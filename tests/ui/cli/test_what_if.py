"""``rerate``, ``rederive``, ``verify``, ``audit``: rows on stdout, talk on stderr, findings in the status."""

import json
from pathlib import Path

import msgspec
import pytest

from tests.history.proofs.recorded_run import ENVS, copy_log, nth
from tests.history.proofs.test_audit import RUN as MADE_UP
from tests.history.proofs.test_audit import history
from tests.places import append, ask, on_log, recorded
from unstable_stream.events import Step
from unstable_stream.log.local.log import LocalLog

RUN = "run-asked"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a finished run, on the log and in the archive."""
    return recorded(tmp_path_factory.mktemp("data"), RUN, hosted=False).root


def test_verify_says_what_was_compared_as_json_too(data: Path) -> None:
    result = ask(data, "verify", "run-a", "--json", "--no-games")
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert (report["run_id"], report["clean"]) == (RUN, True)
    compared = {check["name"]: check["compared"] for check in report["checks"]}
    assert compared["updates"] == 3
    assert "games" not in compared


def test_verify_wants_a_number_of_updates_to_train_on_again(data: Path) -> None:
    for number in ("0", "-1", "some"):
        result = ask(data, "verify", RUN, "--train", "--updates", number)
        assert result.exit_code == 2
        assert f"'{number}' is neither a number above 0 nor 'all'" in " ".join(result.stderr.split())


def test_verify_ends_with_status_1_and_tells_where_what_differs(data: Path, tmp_path: Path) -> None:
    changed: list[Step] = []

    def other_reward(step: Step) -> Step:
        changed.append(step)
        return msgspec.structs.replace(step, final_reward=7.5)

    async def tamper(log: LocalLog) -> None:
        async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as copy:
            await copy_log(log, copy, nth(2, Step, other_reward))

    on_log(data, tamper)
    result = ask(tmp_path, "verify", RUN, "--no-games")
    assert result.exit_code == 1
    assert "1 difference(s)" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("steps: steps[")
    assert f"(event {changed[0].event_id})" in line
    assert "$.final_reward is 7.5, recomputed " in line


def test_rerate_stores_a_labelled_set_beside_the_original(data: Path) -> None:
    result = ask(data, "rerate", RUN, "--system", "elo", "--k", "16", "--per-env", "--csv")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("env_id,rank,rank_used,model_uid,mu,mu_used")
    assert {line.partition(",")[0] for line in lines[1:]} == set(ENVS)
    directory = data / "what-if" / RUN / "elo-k=16"
    assert str(directory) in result.stderr
    ladder = f"SELECT min(env_id), count(*) AS n FROM '{directory}/ladder.parquet'"
    asked = ask(data, "sql", "--files", ladder, "--json")
    assert json.loads(asked.stdout) == [{"min(env_id)": ENVS[1], "n": len(lines) - 1}]
    again = ask(data, "rerate", RUN, "--system", "elo", "--k", "16")
    assert again.exit_code == 0, "the same again is no clash"
    labelled = ("rerate", RUN, "--label", "elo-k=16")
    clash = ask(data, *labelled)
    assert clash.exit_code == 1
    assert "give this one another --label, or replace that one with --force" in str(clash.exception)
    assert ask(data, *labelled, "--force").exit_code == 0
    assert json.loads((directory / "about.json").read_text())["system"] == "trueskill"


def test_a_setting_of_another_system_is_refused(data: Path) -> None:
    result = ask(data, "rerate", RUN, "--system", "elo", "--beta", "2")
    assert result.exit_code == 1
    assert str(result.exception) == "--beta means nothing to elo; it has --mu, --k"


def test_rederive_compares_stage_by_stage(data: Path, tmp_path: Path) -> None:
    new = tmp_path / "none.toml"
    new.write_text("[rewards]\nfinal = []\nstep = []\n")
    result = ask(data, "rederive", RUN, "--rewards", str(new), "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    assert {row["stage"] for row in rows} == {"final", "step", "advantage"}
    whole = {row["stage"]: row for row in rows if row["role"] == "*"}
    assert whole["step"]["steps"] == whole["final"]["steps"] > whole["advantage"]["steps"] == 60
    assert whole["step"]["differing"] > 0
    directory = data / "what-if" / RUN / "none"
    assert str(directory) in result.stderr
    about = json.loads((directory / "about.json").read_text())
    assert about["rewards"]["final"] == []
    assert about["rewards_used"]["final"] == [{"type": "RoleAdvantageByEnvFormatter"}]
    # The set joins with the steps it is about.
    steps = f"'{directory}/steps.parquet' AS w JOIN steps AS s USING (step_id)"
    sql = f"SELECT count(*) AS n FROM {steps} WHERE w.reward_used = s.reward"
    joined = ask(data, "sql", "--files", sql, "--json")
    assert json.loads(joined.stdout) == [{"n": whole["step"]["steps"]}]


def test_without_a_log_there_is_nothing_to_verify(tmp_path: Path) -> None:
    for arguments in (["verify", RUN], ["rerate", RUN], ["rederive", RUN, "--rewards", "x.toml"]):
        result = ask(tmp_path, *arguments)
        assert result.exit_code == 1
        assert "no event log at" in str(result.exception)


def test_a_lost_step_is_told_with_its_place(tmp_path: Path) -> None:
    events = history()
    lost = next(event for event in events if isinstance(event, Step))
    append(tmp_path, [event for event in events if event is not lost])
    result = ask(tmp_path, "audit", MADE_UP)
    assert result.exit_code == 1
    assert (
        f"unknown step consumed: learner-updates[0]@0: step {lost.event_id} is not in the log"
        in result.stderr
    )
    assert "3 problems" in result.stdout
