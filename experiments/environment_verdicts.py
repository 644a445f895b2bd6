"""Judge every environment that can be had offline, and keep the verdicts; ``make generated`` makes a page.

    python -m experiments.environment_verdicts                      # those that are not kept, in order
    python -m experiments.environment_verdicts --only Poker Kuhn    # only those with this in their ids

Each verdict is kept when it is there, so the same command goes on where it was. One of a version of the code
that is not installed any more is judged again.
"""

import argparse
import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pyspiel import registered_names

from unstable_stream.errors import ConfigError, UnstableStreamError
from unstable_stream.games.court.verdict import ORDER, Verdict, version_of
from unstable_stream.games.openspiel.games import load_game
from unstable_stream.services.launch.environment_trial import Task, try_environment

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "docs" / "data" / "environment-verdicts.jsonl"
LISTED = ROOT / "docs" / "reference" / "environments.md"
SECONDS = 20.0
LONGEST = 240
"""Characters of a finding in the table."""


def environments(page: str) -> list[tuple[str, int]]:
    """Return the environments of the reference page with their players, and all games of OpenSpiel."""
    listed = re.findall(r"^\| `(\S+)` \| (\d) \|", page, re.MULTILINE)
    return [
        *((name, int(players)) for name, players in listed),
        *((f"openspiel:{name}", 2) for name in games()),
    ]


def games() -> list[str]:
    """Return the names of OpenSpiel's games that can be played here."""
    found = []
    for name in registered_names():
        with contextlib.suppress(ConfigError):
            load_game(name)
            found.append(name)
    return found


def read(path: Path = ROWS) -> dict[str, Verdict]:
    """Return the verdicts that are kept, by environment; the last of each counts."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    verdicts = [msgspec.json.decode(line, type=Verdict) for line in lines]
    return {verdict.env_id: verdict for verdict in verdicts}


def shown(verdict: Verdict) -> Verdict:
    """Return what the table needs of a verdict: the findings that failed or warned."""
    findings = tuple(finding for status in ORDER[:2] for finding in verdict.of(status))
    return msgspec.structs.replace(verdict, findings=findings)


def judge_all(wanted: Sequence[str], rows: Path) -> None:
    """Judge what is not kept."""
    kept = read(rows)
    todo = [
        (env_id, players)
        for env_id, players in environments(LISTED.read_text(encoding="utf-8"))
        if not wanted or any(part in env_id for part in wanted)
    ]
    for number, (env_id, players) in enumerate(todo, start=1):
        try:
            if env_id in kept and kept[env_id].version == version_of(env_id):
                continue
            verdict = try_environment(Task(env_id, players, seconds=SECONDS))
        except UnstableStreamError as error:
            print(f"{number} of {len(todo)}: {error}")
            continue
        with rows.open("ab") as file:
            file.write(msgspec.json.encode(shown(verdict)) + b"\n")
        print(f"{number} of {len(todo)}: {env_id} {verdict.status}", flush=True)


def page(present: str) -> str:
    """Return the page with its table written anew."""
    verdicts = sorted(read().values(), key=lambda verdict: (ORDER.index(verdict.status), verdict.env_id))
    counts = ", ".join(
        f"{sum(verdict.status == status for verdict in verdicts)} {status}" for status in ORDER[:3]
    )
    rows = [
        f"Of {len(verdicts)} environments: {counts}.",
        "",
        "| Environment | Verdict | Findings |",
        "|---|---|---|",
    ]
    for verdict in verdicts:
        found = [
            f"**{finding.check}** ({finding.status}): {_cell(finding.says)}"
            for status in ORDER[:2]
            for finding in verdict.of(status)
        ]
        rows.append(f"| `{verdict.env_id}` | {verdict.status} | {'<br>'.join(found) or '–'} |")
    return present.partition(_MARK)[0] + _MARK + "\n\n" + "\n".join(rows) + "\n"


_MARK = "<!-- written by make generated -->"


def _cell(text: str) -> str:
    short = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return re.sub(r"([|<>*_`\[\]\\])", r"\\\1", " ".join(short.split()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="PART")
    parser.add_argument("--rows", type=Path, default=ROWS)
    given = parser.parse_args()
    judge_all(given.only, given.rows)
