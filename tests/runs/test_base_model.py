"""The base model of a run is what it was, wherever it lies and wherever a command stands."""

from pathlib import Path
from typing import Any

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.inference.base_model import model_fingerprint, model_here
from unstable_stream.runs.base_model import ModelIdentity, base_model_path, with_fingerprint
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.fork import Fork, check_fork
from unstable_stream.runs.resume import check_resumable

ENVS = [{"env_id": "TicTacToe-v0"}]


def model(directory: Path, weights: bytes = b"weights") -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(weights)
    return directory


def recorded(path: Path | str, **settings: Any) -> RunConfig:
    config = parse_config({"model": str(path), "train_envs": ENVS, **settings})
    return with_fingerprint(config, base_model_path(config))


def read_again(config: RunConfig, **changes: Any) -> RunConfig:
    return parse_config({**config.model_dump(mode="json"), **changes})


def test_paths_are_absolute_from_when_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "other"):
        model(tmp_path / "models" / name)
    (tmp_path / "adapter").mkdir()
    monkeypatch.chdir(tmp_path)
    opponents = [
        {"name": "a", "kind": "model", "path": "models/other"},
        {"name": "b", "kind": "model", "path": "Qwen/Qwen3-0.6B"},
        {"name": "c", "kind": "adapter", "path": "adapter"},
        {"name": "d", "kind": "adapter", "path": "s3://bucket/adapter"},
        {"name": "e", "kind": "adapter"},
    ]
    config = parse_config(
        {
            "model": "models/../models/mine",
            "train_envs": ENVS,
            "learner": {"initial_lora_path": "adapter"},
            "trained_models": [{"name": "m", "initial_lora_path": "not/there/yet"}],
            "model_pool": {"fixed": opponents, "sample_mode": "fixed"},
            "evaluation": {"opponents": opponents[:1]},
        }
    )
    monkeypatch.chdir("/")
    read = read_again(config)
    assert base_model_path(read) == str(tmp_path / "models" / "mine")
    other, adapter = str(tmp_path / "models" / "other"), str(tmp_path / "adapter")
    found = [each.path for each in read.model_pool.fixed]
    assert found == [other, "Qwen/Qwen3-0.6B", adapter, "s3://bucket/adapter", None]
    assert read.evaluation.opponents[0].path == other
    assert read.learner.initial_lora_path == adapter
    assert read.trained_models[0].initial_lora_path == str(tmp_path / "not/there/yet")


@pytest.mark.parametrize("name", ["tiny-player", "Qwen/Qwen3-0.6B", "./no/such/model"])
def test_what_is_no_directory_stays_as_it_was_typed(name: str) -> None:
    assert parse_config({"model": name, "train_envs": ENVS}).model == name


def test_an_id_with_a_recorded_commit_is_no_directory_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path / "Qwen" / "Qwen3-0.6B")
    monkeypatch.chdir(tmp_path)
    tree = {"model": "Qwen/Qwen3-0.6B", "model_revisions": {"Qwen/Qwen3-0.6B": "abc"}, "train_envs": ENVS}
    assert parse_config(tree).model == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("name", ["a" * 300, "~nosuchuser/x", "x/" * 3000])
def test_a_path_that_no_file_can_have_is_an_error_of_the_configuration(name: str) -> None:
    tree = {"model": name, "train_envs": ENVS, "learner": {"initial_lora_path": name}, "directory": name}
    config = parse_config(tree)
    with pytest.raises(ConfigError, match="no such directory"):
        base_model_path(config)
    assert model_here(name)


def test_another_model_at_the_recorded_place_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    run = recorded(model(tmp_path / "mine"))
    (tmp_path / "mine" / "notes.json").write_text("{}")  # no part of the model
    assert base_model_path(read_again(run)) == run.model
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"WEIGHTS")
    with pytest.raises(ConfigError) as refused:
        base_model_path(read_again(run))
    found = model_fingerprint(tmp_path / "mine")
    for part in (run.model, run.model_fingerprint[:12], found[:12], "--set model="):
        assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("goes_on", ["resumed", "forked"])
def test_a_moved_model_is_named_anew_and_must_be_the_same(tmp_path: Path, goes_on: str) -> None:
    run = recorded(model(tmp_path / "mine"))

    def check(**changes: Any) -> RunConfig:
        changed = read_again(run, **changes)
        if goes_on == "resumed":
            check_resumable(run, changed)
        else:
            check_fork(Fork("run", 1, 0, ()), run, changed)
        return changed

    check()
    moved = (tmp_path / "mine").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"no such directory.*put it back there.*--set model="):
        base_model_path(check())
    assert base_model_path(check(model=str(moved))) == str(moved)
    with pytest.raises(ConfigError, match=r"other' is another model, of fingerprint"):
        check(model=str(model(tmp_path / "other", b"other")))
    with pytest.raises(ConfigError, match="model_fingerprint"):
        check(model_fingerprint="0" * 64)
    earlier = run.model_copy(update={"model_fingerprint": ""})
    with pytest.raises(ConfigError, match="model"):
        check_resumable(earlier, earlier.model_copy(update={"model": str(moved)}))


def test_runs_share_a_base_model_by_its_files_and_without_a_record_by_its_name(tmp_path: Path) -> None:
    one, copy = recorded(model(tmp_path / "one")), recorded(model(tmp_path / "copy"))
    other = recorded(model(tmp_path / "other", b"other"))
    of = ModelIdentity.of_run
    assert of(one).matches(of(copy))
    assert of(one).matches(ModelIdentity.of_model(str(tmp_path / "copy")))
    assert not of(one).matches(of(other))
    earlier = one.model_copy(update={"model_fingerprint": ""})
    assert of(earlier).matches(of(one))
    assert not of(earlier).matches(of(copy))
    assert ModelIdentity.of_model("owner/name") == ("owner/name", "")


def test_a_model_of_hugging_face_has_its_commit_and_no_fingerprint(tmp_path: Path) -> None:
    path = model(tmp_path / "models--owner--name" / "snapshots" / "abc")
    config = parse_config({"model": "owner/name", "train_envs": ENVS})
    assert with_fingerprint(config, str(path)) is config
