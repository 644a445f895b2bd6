"""Make what a release publishes, and refuse what it should not: ``make release``.

1. Version, changelog and citation agree, and the version of the tag if one is named.
2. The wheel and the source distribution are built into ``dist/``, and ``twine check`` passes.
3. The wheel holds the package, all of it and nothing else; no file is above 1 MB.
4. A new user starts from the wheel, in an environment and a directory that are empty.
5. The notes of the version, from the changelog, are written to ``dist/``.
"""

import argparse
import re
import shutil
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tools.first_start import UNWRITABLE_HOME, StartError, install, run, start

ROOT: Final = Path(__file__).parent.parent
DIST: Final = ROOT / "dist"
UV: Final = Path(sys.executable).with_name("uv")
LARGEST_FILE_BYTES: Final = 1_000_000
_SOURCE_ONLY: Final = (
    "PKG-INFO",
    ".gitignore",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
)


def notes(changelog: str, version: str) -> str:
    """Return what the changelog says about a version, without its heading.

    Raises:
        ValueError: no heading ``## VERSION (YYYY-MM-DD)``, or nothing below it.
    """
    found = re.search(
        rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if found is None or not found[1].strip():
        raise ValueError(
            f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)' with text: write what is new"
        )
    return found[1].strip() + "\n"


def disagreements(version: str, files: Mapping[str, str], tag: str | None = None) -> Iterator[str]:
    """Yield the places that name another version than the package, or another date than the changelog.

    Args:
        version: of the package.
        files: the text of each of ``pyproject.toml``, ``CITATION.cff`` and ``CHANGELOG.md``.
        tag: that the release gets.
    """
    if (declared := tomllib.loads(files["pyproject.toml"])["project"]["version"]) != version:
        yield f"pyproject.toml has version {declared}, not {version}"
    date = re.search(rf"^## {re.escape(version)} \((.*)\)$", files["CHANGELOG.md"], re.MULTILINE)
    cited = dict(re.findall(r'^(version|date-released): "?([^"\n]*)"?$', files["CITATION.cff"], re.MULTILINE))
    wanted = {"version": version, "date-released": date[1] if date else None}
    yield from (
        f"CITATION.cff has {key} {cited.get(key)}, not {value}"
        for key, value in wanted.items()
        if cited.get(key) != value
    )
    if tag not in (None, f"v{version}"):
        yield f"the tag is {tag}, for version {version} it is v{version}"


def wheel_names(tracked: Iterable[str], moved: Mapping[str, str]) -> set[str]:
    """Return the files that the wheel has to have.

    Args:
        tracked: the files of the repository.
        moved: file or directory of the repository to where the wheel has it, as ``pyproject.toml`` says.
    """
    places = {"unstable_stream": "unstable_stream", **moved}
    return {
        new + name.removeprefix(old)
        for name in tracked
        for old, new in places.items()
        if name == old or name.startswith(f"{old}/")
    }


def wheel_problems(sizes: Mapping[str, int], wanted: set[str]) -> Iterator[str]:
    """Yield what is wrong with the contents of a wheel.

    Args:
        sizes: bytes of each file in it.
        wanted: the files that belong there beside its ``.dist-info``.
    """
    there = {name for name in sizes if ".dist-info/" not in name}
    yield from (f"{name} is missing" for name in sorted(wanted - there))
    yield from (f"{name} does not belong there" for name in sorted(there - wanted))
    yield from _too_large(sizes)


def source_problems(sizes: Mapping[str, int], tracked: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with the contents of a source distribution, whose names have no first directory."""
    wanted = {name for name in tracked if name.startswith(("unstable_stream/", "topics/", "examples/"))}
    yield from (f"{name} is missing" for name in sorted(wanted - set(sizes)))
    yield from (f"{name} does not belong there" for name in sorted(set(sizes) - wanted - set(_SOURCE_ONLY)))
    yield from _too_large(sizes)


def _too_large(sizes: Mapping[str, int]) -> Iterator[str]:
    for name, size in sizes.items():
        if size > LARGEST_FILE_BYTES:
            yield f"{name} has {size:,} bytes, more than {LARGEST_FILE_BYTES:,}"


def build(into: Path) -> tuple[Path, Path]:
    """Build a wheel and a source distribution into a directory that is made empty; return their paths."""
    shutil.rmtree(into, ignore_errors=True)
    run([UV, "build", "--quiet", "--out-dir", into, ROOT], cwd=ROOT)
    (wheel,), (source,) = into.glob("*.whl"), into.glob("*.tar.gz")
    return wheel, source


def contents_problems(wheel: Path, source: Path) -> list[str]:
    """Return what is wrong with the contents of both."""
    tracked = run(["git", "ls-files"], cwd=ROOT).splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = wheel_names(tracked, project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"])
    with zipfile.ZipFile(wheel) as archive:
        packed = {member.filename: member.file_size for member in archive.infolist()}
    with tarfile.open(source) as files:
        sources = {member.name.partition("/")[2]: member.size for member in files}
    return [f"{wheel.name}: {problem}" for problem in wheel_problems(packed, wanted)] + [
        f"{source.name}: {problem}" for problem in source_problems(sources, tracked)
    ]


def main() -> None:
    """Make the release; end with status 1 and the reasons if it is not fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tag", help="the tag that the release gets: vVERSION")
    parser.add_argument("--no-start", action="store_true", help="leave out the start in an empty environment")
    arguments = parser.parse_args()
    files = {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md")
    }
    version = tomllib.loads(files["pyproject.toml"])["project"]["version"]
    said = re.search(
        r'"(.*)"$', (ROOT / "unstable_stream" / "version.py").read_text(encoding="utf-8").strip()
    )
    try:
        text = notes(files["CHANGELOG.md"], version)
        problems = list(disagreements(said[1] if said else "", files, arguments.tag))
        wheel, source = build(DIST)
        run([UV, "tool", "run", "twine", "check", "--strict", wheel, source], cwd=ROOT)
        problems += contents_problems(wheel, source)
        if problems:
            raise ValueError("\n".join(problems))
        (DIST / f"release-notes-{version}.md").write_text(text, encoding="utf-8")
        for built in (wheel, source):
            print(f"{built.relative_to(ROOT)}  {built.stat().st_size:,} bytes")
        if not arguments.no_start:
            with tempfile.TemporaryDirectory() as place:
                environment, empty = Path(place) / "environment", Path(place) / "an empty directory"
                empty.mkdir()
                pinned = (
                    "--override",
                    str(ROOT / "overrides.txt"),
                    "--constraint",
                    str(ROOT / "constraints.txt"),
                )
                install(UV, Path(sys.executable), environment, wheel, *pinned)
                print(f"started from the wheel: {start(environment, empty, home=UNWRITABLE_HOME):.0f} s")
    except (ValueError, StartError) as error:
        sys.exit(f"not fit for a release:\n{error}")


if __name__ == "__main__":
    main()
