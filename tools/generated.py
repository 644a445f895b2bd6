"""Write all files that follow from the code: ``make generated``; a test says which are old.

``python -m tools.generated docs/reference/archive.md`` writes only those named.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from experiments import algorithms, environment_verdicts, exploitability
from tools.pages import api_reference, archive, asyncapi, commands, configuration, environments, memory
from tools.pages.chance import chance_page
from tools.pages.chance_games import ROWS, read_rows
from unstable_stream.events import EVENT_TYPES

ROOT: Final = Path(__file__).parent.parent
Make: TypeAlias = Callable[[str], str]
"""From the present text of a file, whose prose may stay, to the one it should have."""


def _opponents(_: str) -> str:
    listed = (ROOT / "docs" / "reference" / "environments.md").read_text(encoding="utf-8")
    for_several = re.findall(r"^\| `\S+` \| [2-9] \|", listed, re.MULTILINE)
    return chance_page(read_rows(ROWS), total=len(for_several))


def _schema(name: str) -> Make:
    return lambda _: json.dumps(asyncapi.event_schema(name), indent=2, sort_keys=True) + "\n"


GENERATED: Final[dict[str, Make]] = {
    "docs/explanation/algorithms.md": algorithms.page,
    "docs/reference/archive.md": archive.page,
    "docs/reference/commands.md": lambda _: commands.commands_page(),
    "docs/reference/configuration.md": lambda _: configuration.render(),
    "docs/reference/environments.md": environments.environments_page,
    "docs/evidence/environment-verdicts.md": environment_verdicts.page,
    "docs/evidence/exploitability.md": exploitability.page,
    "docs/explanation/memory.md": memory.page,
    "docs/reference/opponents.md": _opponents,
    "docs/reference/python-api.md": lambda _: api_reference.render(),
    "topics/asyncapi.json": lambda _: json.dumps(asyncapi.document(), indent=2) + "\n",
    **{f"topics/schemas/{asyncapi.schema_file_name(name)}": _schema(name) for name in EVENT_TYPES},
}
SLOW: Final = ("docs/reference/environments.md",)
"""Takes half a minute, and depends on the version of Python."""


def made(name: str) -> tuple[str, str]:
    """Return the present text of a file and the one it should have."""
    file = ROOT / name
    present = file.read_text(encoding="utf-8") if file.exists() else ""
    return present, GENERATED[name](present)


def main() -> None:
    """Write what is old."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="all if left out")
    for name in parser.parse_args().files or GENERATED:
        present, text = made(name)
        if present != text:
            (ROOT / name).write_text(text, encoding="utf-8")
            print(f"written anew: {name}")


if __name__ == "__main__":
    main()
