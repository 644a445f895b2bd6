"""A base model that cannot be loaded is refused before anything is started."""

from pathlib import Path

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.inference.base_model import resolve_model


def test_a_directory_without_a_model_or_without_its_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no weights \(\*\.safetensors or \*\.bin\)"):
        resolve_model(str(tmp_path))
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert resolve_model(str(tmp_path)) == str(tmp_path)


def test_the_tiny_player_has_its_own() -> None:
    assert list(Path(resolve_model("tiny-player")).glob("*.safetensors"))


def test_a_directory_that_was_not_made_yet_is_told_from_a_wrong_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configurations of examples/smollm2 name one; its name could as well be an id on the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # it asks nobody
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"models/smollm2.* no such directory.*make smollm2") as refused:
        resolve_model("models/smollm2")
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)
