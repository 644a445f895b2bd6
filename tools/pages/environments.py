"""Make docs/reference/environments.md, the page of environments that run here."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from unstable_stream.games.environments import list_environments, probe
from unstable_stream.games.opponents.scripted import scripted_names

_TABLES: Final = re.compile(r"^## Playable .*?(?=^## (?!Not playable))", re.MULTILINE | re.DOTALL)


def environments_page(text: str) -> str:
    """Return the page with new tables; its prose stays. It takes half a minute: some search for levels."""
    playable: list[str] = []
    refused: dict[tuple[str, str], list[str]] = defaultdict(list)
    for env_id in list_environments():
        num_players, found = probe(env_id)
        if found is None:
            scripted = ", ".join(scripted_names(env_id)) or "–"
            playable.append(f"| `{env_id}` | {num_players} | {scripted} |")
        else:
            remedy = found.remedy if found.kind != "broken-wrapper" else "use the id without `-train`"
            refused[_REASONS.get(found.kind, found.reason), remedy].append(env_id)
    tables = "\n".join(_lines(playable, refused))
    return _TABLES.sub(lambda _: f"{tables}\n\n", text)


_REASONS = {
    "python-3.12": "uses syntax that only Python 3.12 accepts",
    "nltk-data": "needs nltk data",
    "openrouter-key": "asks a language model on OpenRouter",
    "missing-files": "TextArena's package lacks its files",
    "broken-wrapper": "its wrapper expects a board that is never sent",
    "error": "fails on its first move",
}


def _lines(playable: list[str], refused: dict[tuple[str, str], list[str]]) -> Iterator[str]:
    yield f"## Playable ({len(playable)})\n"
    yield "| Environment | Players | Scripted |"
    yield "|---|---|---|"
    yield from playable
    yield f"\n## Not playable here ({sum(map(len, refused.values()))})\n"
    yield "| Reason | Remedy | Environments |"
    yield "|---|---|---|"
    for (reason, remedy), env_ids in sorted(refused.items()):
        yield f"| {reason} | {remedy} | {', '.join(f'`{env_id}`' for env_id in env_ids)} |"
