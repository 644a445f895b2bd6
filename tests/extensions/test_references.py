"""One notation: how a reference is read, written and loaded, and what each mistake says."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.extensions import (
    KINDS,
    Reference,
    absolute,
    build,
    forget_changed_files,
    is_extension,
    load,
    loading,
    use_of,
)
from unstable_stream.extensions.imports import FILE_MODULE_PREFIX

FINAL = KINDS["final_transformation"]
CODE = """
import neighbour
from unstable_stream.extensions import loading

WHILE_LOADING = loading()

class Scaled:
    def __init__(self, by: float = 2.0) -> None:
        self.by = by

    def __call__(self, x, env_id=None):
        return {seat: self.by * reward for seat, reward in x.items()}

def negated(x, env_id=None, times=1):
    return {seat: -times * reward for seat, reward in x.items()}

held = Scaled(by=5.0)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with code; what is imported and searched is forgotten after the test."""
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name in ("mine", "neighbour") or name.startswith(FILE_MODULE_PREFIX):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("spec", "target", "arguments"),
    [
        ("fifo", "fifo", {}),
        ("a.b:C", "a.b:C", {}),
        ("a.b:C(depth=3, name='x y', piles=[1, 2])", "a.b:C", {"depth": 3, "name": "x y", "piles": [1, 2]}),
        ("dir (1)/bots.py:C", "dir (1)/bots.py:C", {}),
        ("dir (1)/bots.py:C(depth=-1)", "dir (1)/bots.py:C", {"depth": -1}),
        ({"type": "a.b:C", "depth": 3}, "a.b:C", {"depth": 3}),
        ({"type": "a.b:C(depth=3)", "width": 4}, "a.b:C", {"depth": 3, "width": 4}),
    ],
)
def test_tables_and_strings_say_the_same(spec: Any, target: str, arguments: dict[str, Any]) -> None:
    reference = Reference.parse(spec)
    assert (reference.target, reference.arguments) == (target, arguments)
    assert Reference.parse(reference.text) == reference
    assert Reference.parse(reference.spec) == reference


@pytest.mark.parametrize(
    "spec",
    [
        f"a:B(x={'-' * 9000}1)",
        f"a:B(x={'[' * 150}{']' * 150})",
        f"a:B(x={'[' * 33}{']' * 33})",
        f"a:B(x={'(' * 4000}1)",
        f"a:B(x={'1+' * 4000}1)",
        f"a:B(x=0x{'f' * 5000})",
        f"a:B(x={'9' * 5000})",
        "a" * 20_000,
        "a:B(x={[]: 1})",
        "a:B(x={1, 2})",
        "a:B(x=b'1')",
        "a:B(x=1j)",
        "a:B(**{'x': 1})",
        "a:B(x='\x00')",
        {"type": "a" * 20_000},
    ],
)
def test_a_string_that_asks_too_much_is_refused_with_a_short_quote(spec: Any) -> None:
    with pytest.raises(ConfigError) as found:
        Reference.parse(spec, "algorithm")
    assert str(found.value).startswith("algorithm: ")
    assert len(str(found.value)) < 400


@pytest.mark.parametrize("spec", ["a:B(1)", "a:B(x=y)", "a:B(x=)", "(x=1)", {"depth": 3}, {"type": 3}])
def test_what_is_no_reference_is_refused(spec: Any) -> None:
    with pytest.raises(ConfigError, match=r"my\.key: "):
        Reference.parse(spec, "my.key")


def test_a_relative_path_becomes_absolute_and_nothing_else_changes(directory: Path) -> None:
    assert absolute("mine.py:Scaled") == f"{directory}/mine.py:Scaled"
    assert absolute({"type": "./mine.py:Scaled", "by": 3}) == {"type": f"{directory}/mine.py:Scaled", "by": 3}
    for name in ("random-legal", "mine:Scaled", "SimpleTak-v0-train"):
        assert absolute(name) == name


@pytest.mark.parametrize("place", ["mine", "mine.py"])
def test_class_function_and_object_are_built(directory: Path, place: str) -> None:
    assert build(FINAL, f"{place}:Scaled")({0: 1.0}) == {0: 2.0}
    assert build(FINAL, {"type": f"{place}:Scaled", "by": 3.0})({0: 1.0}) == {0: 3.0}
    assert build(FINAL, f"{place}:negated")({0: 1.0}) == {0: -1.0}
    assert build(FINAL, f"{place}:negated(times=4)")({0: 1.0}) == {0: -4.0}
    held = build(FINAL, f"{place}:held")
    assert held({0: 1.0}) == {0: 5.0}
    assert held is not build(FINAL, f"{place}:held"), "two users share no state"


def test_a_file_is_imported_once_until_its_change_is_asked_for(directory: Path) -> None:
    assert load(FINAL, Reference("mine.py:WHILE_LOADING")) is True, "code can tell that it is being loaded"
    assert not loading()
    first = load(FINAL, Reference("mine.py:Scaled"))
    assert load(FINAL, Reference(f"{directory}/mine.py:Scaled")) is first
    (directory / "mine.py").write_text(CODE.replace("2.0", "7.0"))
    assert load(FINAL, Reference("mine.py:Scaled")) is first, "a run goes on with the code it began with"
    forget_changed_files()
    assert load(FINAL, Reference("mine.py:Scaled"))()({0: 1.0}) == {0: 7.0}


def test_an_installed_package_announces_extensions_by_name(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = directory / "pretend_package-1.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pretend-package\nVersion: 1.5\n")
    announced = "[unstable_stream.final_transformations]\nscaled = mine:Scaled\n"
    (metadata / "entry_points.txt").write_text(announced)
    monkeypatch.syspath_prepend(directory)
    assert build(FINAL, "scaled(by=4.0)")({0: 1.0}) == {0: 4.0}
    assert is_extension(FINAL, Reference("scaled"))
    assert not is_extension(FINAL, Reference("WinDrawLossFormatter"))
    with pytest.raises(ConfigError, match=r"known: WinDrawLossFormatter, .*scaled"):
        build(FINAL, "scald")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("scaled", "unknown final transformation 'scaled'; known: WinDrawLossFormatter, Role"),
        ("nowhere.py:X", r"cannot load nowhere\.py: no such file"),
        ("broken.py:X", r"cannot import broken\.py: ModuleNotFoundError: No module named 'nothing_of"),
        ("broken:X", "cannot import broken: ModuleNotFoundError"),
        ("mine.py", r"say which name in the file, mine\.py:Name"),
        ("mine:", "expected package.module:Name or path/to/file.py:Name"),
        ("mine:Scald", "mine has no 'Scald'"),
        ("mine:Scaled(bye=1)", r"mine:Scaled\(by: float = 2\.0\).* cannot take \{'bye': 1\}"),
        ("mine:held(by=1)", r"is an object already, so it takes no arguments \['by'\]"),
        ("mine:neighbour", "is the module neighbour; expected __call__"),
        ("object:Lost", 'is an object of the process that named it.*backend="inline"'),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(directory: Path, spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        build(FINAL, spec, "rewards.final.0")
    assert str(caught.value).startswith("rewards.final.0: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["api_key='secret'", "url='http://me:secret@host'", "url='me:secret@host'"])
def test_a_mistake_repeats_no_secret(directory: Path, given: str) -> None:
    with pytest.raises(ConfigError, match="…") as caught:
        build(FINAL, f"mine:Scaled({given})", "rewards.final.0")
    assert "secret" not in str(caught.value)


def test_every_built_in_can_be_loaded() -> None:
    heavy = {"engine", "tracker"}  # vLLM may not be installed, trackers are above this package
    for kind in KINDS.values():
        for name in kind.built_in if kind.name not in heavy else ():
            assert load(kind, Reference(name)) is not None


def test_what_was_used_is_told_apart_by_its_source(directory: Path) -> None:
    first = use_of(FINAL, Reference("mine.py:Scaled"))
    assert (first.kind, first.target, first.distribution) == ("final_transformation", "mine.py:Scaled", "")
    assert use_of(FINAL, Reference("mine.py:Scaled")) == first
    (directory / "mine.py").write_text(CODE + "# changed\n")
    assert use_of(FINAL, Reference("mine.py:Scaled")) == first, "the code in use is still the first"
    forget_changed_files()
    assert use_of(FINAL, Reference("mine.py:Scaled")).sha256 not in ("", first.sha256)
    installed = use_of(FINAL, Reference("pytest:Item"))
    assert (installed.distribution, installed.version) == ("pytest", pytest.__version__)
