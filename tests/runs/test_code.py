"""The file that names the code of a run started here."""

from pathlib import Path

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.runs.code import own_patterns, remember_code
from unstable_stream.runs.config import parse_config


def test_it_is_replaced_whole_and_damage_is_told(tmp_path: Path) -> None:
    code, path = tmp_path / "mine.py", tmp_path / "code" / "run-a.json"
    code.write_text("class Mine:\n    def __call__(self, x, env_id=None):\n        return x\n")
    values = {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]}
    config = parse_config(values | {"rewards": {"final": [f"{code}:Mine"]}})
    assert own_patterns(path) == []
    remember_code(config, path)
    remember_code(config, path)
    patterns = own_patterns(path)
    assert len(patterns) == 1
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    path.write_bytes(path.read_bytes()[:-3])  # as a full disk left it
    with pytest.raises(ConfigError, match=r"is damaged .* --allow-code"):
        own_patterns(path)
