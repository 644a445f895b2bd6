"""Install the wheel with each Python that is here and start from it: ``make matrix`` prints a table.

Each Python twice: with the newest packages that fit, and with the oldest that ``pyproject.toml`` allows of
those that it names and that are built for that Python. A Python above the bound in ``pyproject.toml`` is
tried too: the bound follows what was seen.
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.first_start import StartError, install, interpreter, run, start
from tools.release import ROOT, UV, build

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
PACKAGES: Final = ("newest", "oldest")
_SHOWN: Final = ("torch", "transformers", "ray", "duckdb")


@dataclass(frozen=True)
class Tried:
    """How one Python fared with one choice of packages."""

    python: str
    packages: str
    install_s: float | None = None
    """Seconds to install, downloads included; ``None`` if it was not tried or failed."""
    train_s: float | None = None
    """Seconds that a quickstart of two updates took; ``None`` if it did not come to its end."""
    versions: str = ""
    trouble: str = ""
    """What failed, or why it was not tried; empty if all went well."""


def without_upper_bound(wheel: Path, into: Path) -> Path:
    """Write a wheel that a newer Python takes into another directory, by the same name; return its path."""
    into.mkdir()
    copy = into / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w") as new:
        for member in old.infolist():
            content = old.read(member)
            if member.filename.endswith(".dist-info/METADATA"):
                content = re.sub(rb"(?m)^(Requires-Python: )<3\.\d+,", rb"\1", content)
            new.writestr(member, content)
    return copy


def table(rows: Sequence[Tried]) -> str:
    """Return the rows as a table in Markdown."""

    def seconds(value: float | None) -> str:
        return "–" if value is None else f"{value:.0f} s"

    lines = ["| Python | packages | install | quickstart, 2 updates | |", "|---|---|---|---|---|"]
    for row in rows:
        said = row.trouble.splitlines() or [row.versions]
        remark = next((line for line in said if line.startswith("error")), said[-1])
        cells = (row.python, row.packages, seconds(row.install_s), seconds(row.train_s), remark)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _oldest(version: str, place: Path) -> Sequence[str]:
    # For a wheel all it needs is indirect, and the newest: the bounds are those of the project's own file.
    pinned = place / "oldest.txt"
    oldest = ("--resolution", "lowest-direct", "--python-version", version, "--extra", "train")
    built = (
        "--only-binary",
        ":all:",
        "--no-binary",
        "trueskill",
    )  # TrueSkill is nowhere built, and pure Python
    run(
        [UV, "pip", "compile", "--quiet", *oldest, *built, "pyproject.toml", "--output-file", pinned],
        cwd=ROOT,
    )
    return ("--constraint", str(pinned))


def tried(version: str, packages: str, wheel: Path, place: Path, backend: str) -> Tried:
    """Try one Python with one choice of packages, in a directory of its own that is removed."""
    python = interpreter(version)
    if python is None:
        return Tried(version, packages, trouble="not on this machine")
    place.mkdir()
    environment, empty, home = place / "environment", place / "an empty directory", place / "home"
    empty.mkdir()
    home.mkdir()
    install_s, versions = None, ""
    try:
        begin_s = time.monotonic()
        install(UV, python, environment, wheel, *(_oldest(version, place) if packages == "oldest" else ()))
        install_s = time.monotonic() - begin_s
        frozen = run(
            [UV, "pip", "freeze", "--python", environment / "bin" / "python"], cwd=place
        ).splitlines()
        versions = ", ".join(each.replace("==", " ") for each in frozen if each.partition("==")[0] in _SHOWN)
        return Tried(
            version, packages, install_s, start(environment, empty, home=home, backend=backend), versions
        )
    except StartError as error:
        return Tried(version, packages, install_s, versions=versions, trouble=str(error).strip())
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    """Try all that are named; end with status 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", action="append", choices=VERSIONS, help="only this version; may be repeated"
    )
    parser.add_argument("--packages", action="append", choices=PACKAGES, help="only these packages")
    parser.add_argument("--backend", choices=("ray", "inline"), default="ray")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        wheel = without_upper_bound(build(Path(place) / "dist")[0], Path(place) / "wheel")
        for version in arguments.python or VERSIONS:
            for packages in arguments.packages or PACKAGES:
                row = tried(
                    version, packages, wheel, Path(place) / f"{version}-{packages}", arguments.backend
                )
                rows.append(row)
                print(f"{version} {packages}: {row.trouble or 'ok'}", file=sys.stderr, flush=True)
    print(table(rows))
    sys.exit(any(row.trouble and row.trouble != "not on this machine" for row in rows))


if __name__ == "__main__":
    main()
