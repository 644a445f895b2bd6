"""What a run records of its environments, and of what it warns."""

from pathlib import Path

import msgspec
import pytest

from unstable_stream.games.court.verdict import Finding, Verdict, version_of
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.verdicts import changed_environments, environments_in_use, keep_verdict

ENV = "TicTacToe-v0-train"


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path)


def _config() -> RunConfig:
    return parse_config({"name": "demo", "model": "tiny-player", "train_envs": [{"env_id": ENV}]})


def _verdict(status: str = "passed") -> Verdict:
    finding = Finding("ends", status, "so it is")  # type: ignore[arg-type]
    return Verdict(
        env_id=ENV,
        num_players=2,
        seed=0,
        version=version_of(ENV),
        games=1,
        seconds=1.0,
        findings=(finding,),
        judged_at_ms=5,
    )


def test_an_unchecked_environment_is_recorded_with_its_version_alone(data: DataDir) -> None:
    (used,), doubts = environments_in_use(_config(), data)
    assert (used.env_id, used.distribution, used.verdict) == (ENV, "textarena", "")
    assert used.sha256
    assert doubts == []


def test_a_failed_environment_is_recorded_and_warned_of(data: DataDir) -> None:
    keep_verdict(_verdict("failed"), data)
    (used,), doubts = environments_in_use(_config(), data)
    assert (used.verdict, used.judged_at_ms) == ("failed", 5)
    (line,) = doubts
    assert "failed its check: unstable-stream check-env" in line


def test_a_verdict_of_other_code_is_a_change(data: DataDir) -> None:
    old = msgspec.structs.replace(
        _verdict(), version=msgspec.structs.replace(version_of(ENV), sha256="0" * 64)
    )
    keep_verdict(old, data)
    (used,), doubts = environments_in_use(_config(), data)
    assert used.verdict == ""
    (line,) = doubts
    assert "has changed since it was checked" in line


def test_drift_from_the_recorded_version_is_told(data: DataDir) -> None:
    recorded, _ = environments_in_use(_config(), data)
    assert changed_environments(recorded) == []
    other = msgspec.structs.replace(recorded[0], sha256="f" * 64)
    (line,) = changed_environments([other, msgspec.structs.replace(other, num_players=3)])
    assert f"{ENV} is another than the run used" in line


def test_nothing_keeps_a_run_from_starting(data: DataDir) -> None:
    path = keep_verdict(_verdict("warned"), data)
    assert msgspec.json.decode(path.read_bytes(), type=Verdict) == _verdict("warned")
    path.write_bytes(b"{")
    config = parse_config(
        {"name": "demo", "model": "tiny-player", "train_envs": [{"env_id": ENV}, {"env_id": "Gone-v0"}]}
    )
    used, (damaged, unknown) = environments_in_use(config, data)
    assert [(use.verdict, bool(use.sha256)) for use in used] == [("", True), ("", False)]
    assert "is no verdict" in damaged
    assert "is not recorded" in unknown


def test_an_environment_registered_by_others_is_its_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies beside it may be a home directory, or all installed packages."""
    ta = pytest.importorskip("textarena")
    (tmp_path / "court_plugin.py").write_text("class Game: ...")
    monkeypatch.syspath_prepend(tmp_path)
    ta.register("Plugged-v0", entry_point="court_plugin:Game")
    before = version_of("Plugged-v0")
    (tmp_path / "beside.bin").write_bytes(b"0" * 100)
    assert version_of("Plugged-v0") == before
