"""Configurations, overrides and topic files changed at random are accepted or refused with a reason."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import changed_bytes, changed_document, refusal
from unstable_stream.errors import ConfigError, EventLogError
from unstable_stream.log.topics import TOPICS_DIR, load_topics
from unstable_stream.runs.config import RunConfig, parse_config, read_toml

EXAMPLES = [
    path
    for path in sorted(Path(__file__).parents[2].glob("examples/**/*.toml"))
    if path.parent.name != "mappings"
]
CONFIGURATIONS = [path.read_bytes() for path in EXAMPLES]
TOPIC_FILES = {path.name: path.read_bytes() for path in sorted(TOPICS_DIR.glob("*.toml"))}

keys = st.sampled_from(
    [
        f"{section}.{key}"
        for section, field in RunConfig.model_fields.items()
        for key in getattr(field.annotation, "model_fields", ())
    ]
    + list(RunConfig.model_fields)
)


@settings(max_examples=100, deadline=None)
@given(text=st.sampled_from(CONFIGURATIONS).flatmap(changed_bytes))
def test_changed_files(text: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "run.toml"
    file.write_bytes(text)
    refused = refusal(ConfigError, lambda: parse_config(read_toml(file), origin=str(file)))
    assert refused is None or str(file) in refused


@settings(max_examples=100, deadline=None)
@given(
    values=st.sampled_from(CONFIGURATIONS)
    .map(lambda text: tomllib.loads(text.decode()))
    .flatmap(changed_document)
)
def test_changed_values(values: dict[str, Any]) -> None:
    def parse_and_back() -> None:
        config = parse_config(values)
        # What is recorded with a run must be accepted again when the run is resumed.
        assert parse_config(config.model_dump(mode="json")) == config

    assert refusal(ConfigError, parse_and_back) != "no reason given"


@settings(max_examples=100, deadline=None)
@given(key=st.one_of(keys, st.text(max_size=12)), value=st.text(max_size=20))
def test_overrides(key: str, value: str) -> None:
    values = tomllib.loads(CONFIGURATIONS[0].decode())
    refused = refusal(ConfigError, lambda: parse_config(values, [f"{key}={value}"]))
    assert refused != "no reason given"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_topic_files(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    name = data.draw(st.sampled_from(sorted(TOPIC_FILES)))
    directory = tmp_path_factory.mktemp("topics")
    (directory / name).write_bytes(data.draw(changed_bytes(TOPIC_FILES[name])))
    refused = refusal(EventLogError, lambda: load_topics(directory))
    assert refused is None or str(directory / name) in refused


def _nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [100, 300, 3000, 100_000])
@pytest.mark.parametrize("key", ["rewards.final", "algorithm", "seed", "nothing.of.this.name"])
def test_deep_values_are_refused(key: str, levels: int, tmp_path: Path) -> None:
    text = "[" * levels + "]" * levels
    file = tmp_path / "run.toml"
    file.write_text(f"{key} = {text}")
    assert "nest deeper" in (refusal(ConfigError, lambda: read_toml(file)) or "")
    values = tomllib.loads(CONFIGURATIONS[0].decode())
    assert "nest deeper" in (refusal(ConfigError, lambda: parse_config(values, [f"{key}={text}"])) or "")
    assert "nest deeper" in (
        refusal(ConfigError, lambda: parse_config({**values, key: _nested(levels)})) or ""
    )


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "9" * 5000])
def test_numbers_of_thousands_of_digits_are_refused(number: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"seed = {number}")
    assert str(file) in (refusal(ConfigError, lambda: read_toml(file)) or "")
    values = tomllib.loads(CONFIGURATIONS[0].decode())
    assert refusal(ConfigError, lambda: parse_config(values, [f"seed={number}"]))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_a_file_in_another_encoding_is_refused_by_name(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes('name = "é"'.encode(encoding))
    assert str(file) in (refusal(ConfigError, lambda: read_toml(file)) or "")
