"""What a release refuses, and that a new user starts from the wheel it builds."""

import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tools import first_start, matrix, release

CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n- a\n\n## 0.2.0 (2026-11-28)\n\n### New\n- b\n\n## 0.1.0 (2026-01-02)\n"
)
FILES = {
    "CHANGELOG.md": CHANGELOG,
    "CITATION.cff": 'version: 0.2.0\ndate-released: "2026-11-28"\n',
    "pyproject.toml": '[project]\nversion = "0.2.0"\n',
}


def test_the_notes_of_a_version_are_its_section_of_the_changelog() -> None:
    assert release.notes(CHANGELOG, "0.2.0") == "### New\n- b\n"


@pytest.mark.parametrize("version", ["Unreleased", "0.1.0", "0.3.0", "0.2"])
def test_a_version_without_date_or_text_has_no_notes(version: str) -> None:
    with pytest.raises(ValueError, match=rf"no section '## {version} \(YYYY-MM-DD\)' with text"):
        release.notes(CHANGELOG, version)


@pytest.mark.parametrize(
    ("file", "old", "new", "tag", "said"),
    [
        ("pyproject.toml", "", "", "v0.2.0", []),
        ("pyproject.toml", "", "", "v0.2", ["the tag is v0.2, for version 0.2.0 it is v0.2.0"]),
        ("pyproject.toml", "0.2.0", "0.3.0", None, ["pyproject.toml has version 0.3.0, not 0.2.0"]),
        ("CITATION.cff", "version: 0.2.0", "", None, ["CITATION.cff has version None, not 0.2.0"]),
        ("CITATION.cff", "28", "27", None, ["CITATION.cff has date-released 2026-11-27, not 2026-11-28"]),
    ],
)
def test_files_that_disagree_about_the_version_are_named(
    file: str, old: str, new: str, tag: str | None, said: list[str]
) -> None:
    files = {**FILES, file: FILES[file].replace(old, new)} if old else FILES
    assert list(release.disagreements("0.2.0", files, tag)) == said


def test_what_is_missing_too_much_or_too_large_in_a_package_is_named() -> None:
    tracked = ["unstable_stream/a.py", "unstable_stream/b.py", "topics/c.toml", "tests/test_a.py"]
    wanted = release.wheel_names(tracked, {"topics": "unstable_stream/_topics"})
    sizes = {"unstable_stream/a.py": 1_000_001, "unstable_stream/_topics/c.toml": 1, "x.dist-info/RECORD": 1}
    large = "unstable_stream/a.py has 1,000,001 bytes, more than 1,000,000"
    assert list(release.wheel_problems({**sizes, "tests/test_a.py": 1}, wanted)) == [
        "unstable_stream/b.py is missing",
        "tests/test_a.py does not belong there",
        large,
    ]
    sources = {"unstable_stream/a.py": 1_000_001, "topics/c.toml": 1, "PKG-INFO": 1, "junk": 1}
    assert list(release.source_problems(sources, tracked)) == [
        "unstable_stream/b.py is missing",
        "junk does not belong there",
        large,
    ]


def test_a_python_is_found_behind_a_shim_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, status in (("shims", 127), ("versions/3.14.2/bin", 0)):
        program = tmp_path / place / "python3.14"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\nexit {status}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert first_start.interpreter("3.14") == tmp_path / "versions/3.14.2/bin/python3.14"
    assert first_start.interpreter("3.13") is None


def test_the_table_says_how_each_python_fared() -> None:
    rows = [
        matrix.Tried("3.13", "newest", 21.2, 60.4, "torch 2.15.0"),
        matrix.Tried("3.14", "oldest", trouble="uv pip install …\nerror: no wheel\nhint: …"),
    ]
    assert matrix.table(rows).splitlines()[2:] == [
        "| 3.13 | newest | 21 s | 60 s | torch 2.15.0 |",
        "| 3.14 | oldest | – | – | error: no wheel |",
    ]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_user_starts_from_the_wheel(tmp_path: Path) -> None:
    wheel, source = release.build(tmp_path / "dist")
    assert release.contents_problems(wheel, source) == []
    wheel = matrix.without_upper_bound(wheel, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        assert b"\nRequires-Python: >=3.11\n" in archive.read(about)
    environment, empty = tmp_path / "environment", tmp_path / "an empty directory"
    first_start.install(release.UV, Path(sys.executable), environment, wheel, "--no-deps")
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(
        sysconfig.get_path("purelib")
    )  # not those of a clone: its .pth is not read
    empty.mkdir()
    first_start.start(environment, empty, home=first_start.UNWRITABLE_HOME)
    assert {each.name for each in empty.iterdir()} == {"unstable-data"}
