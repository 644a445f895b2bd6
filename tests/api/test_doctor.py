"""What ``doctor`` says of a machine that has all, and of one that lacks something."""

import json
import shutil
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.command_line import run_command
from tests.processes import completed
from unstable_stream.api import doctor
from unstable_stream.api.doctor import examine
from unstable_stream.api.place import Place


def states(data: Path) -> dict[str, tuple[str, str]]:
    return {check.name: (check.state, check.found) for check in examine(Place.at(data))}


def test_a_machine_that_has_all_is_ok_and_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys; from unstable_stream.api.doctor import examine\n"
        "from unstable_stream.api.place import Place; states = {c.state for c in examine(Place())}\n"
        "print('fail' in states, {'torch', 'ray', 'duckdb', 'transformers'} & set(sys.modules))"
    )
    done = completed(sys.executable, "-c", program, cwd=tmp_path)
    assert done.stdout == "False set()\n"
    assert list(tmp_path.iterdir()) == []


def test_a_package_too_old_is_a_warning_and_one_not_there_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name == "ray":
            raise metadata.PackageNotFoundError(name)
        return {"typer": "0.1"}.get(name, "9999")

    monkeypatch.setattr(metadata, "version", version)
    found = states(tmp_path)
    assert found["typer"][0] == "warn"
    assert found["typer"][1].startswith("0.1, tested with >=")
    assert found["ray"] == ("fail", "not installed")


def test_gpus_that_torch_cannot_use_a_full_disk_and_a_silent_cluster_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"/usr/bin/nvidia-smi": "H100, 81559 MiB", sys.executable: "False"}
    monkeypatch.setattr(doctor, "_output", lambda *command: answers[command[0]])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e8))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = states(tmp_path)
    assert found["gpu"] == ("warn", "H100, 81559 MiB; torch cannot use it")
    assert found["data"][0] == found["ray cluster"][0] == "fail"
    assert found["hugging face"][0] == "warn"


def test_the_command_ends_with_status_1_if_the_quickstart_cannot_run(tmp_path: Path) -> None:
    done = run_command("doctor", "--json", "--log", "kafka://127.0.0.1:1", cwd=tmp_path)
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert (done.returncode, rows["log"]["state"]) == (1, "fail")
    assert "127.0.0.1:1" in rows["log"]["found"]
    assert rows["log"]["remedy"].startswith("start the broker")
    found = run_command("doctor", cwd=tmp_path)
    assert found.returncode == 0, found.stdout
    assert "ok    tiny-player" in found.stdout
