"""Write the first configuration of a user for a game, from the example that fits."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from unstable_stream.api.quickstart import QUICKSTART
from unstable_stream.api.shorthand import TINY_PLAYER, template_for
from unstable_stream.errors import ConfigError, did_you_mean

_PACKAGE: Final = Path(__file__).resolve().parents[1]
# A wheel holds a copy of those examples that need no other file.
_COPIED: Final = _PACKAGE / "_examples"
_EXAMPLES: Final = _COPIED if _COPIED.is_dir() else _PACKAGE.parent / "examples"


class FirstConfiguration(NamedTuple):
    """A configuration that was written."""

    path: Path
    example: str
    """The name of the example that it was made from."""


def examples() -> dict[str, Path]:
    """Return the configurations to begin from, by name."""
    return {path.stem: path for path in (QUICKSTART, *sorted(_EXAMPLES.glob("*.toml")))}


def write_configuration(game: str, out: Path | None = None, *, force: bool = False) -> FirstConfiguration:
    """Write a commented configuration for a game.

    Args:
        game: the id of an environment, or the name of an example.
        out: the file; ``None``: named like the game, in the working directory.
        force: replace a file that is there.

    Raises:
        ConfigError: no such game or example, with those that are close; or the file is there.
        EnvironmentUnavailableError: the game cannot be played on this machine.
    """
    known = examples()
    path = out or Path(re.sub(r"[^\w.-]+", "-", game) + ".toml")
    name, text = (game, _text(known[game])) if game in known else _for_game(game, known)
    text = _with_line(text, "# unstable-stream train", f"# unstable-stream train {path}")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} is there: replace it with --force, or name another with --out") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    return FirstConfiguration(path, name)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _for_game(game: str, known: Mapping[str, Path]) -> tuple[str, str]:
    """Return the name of the example that fits a game, and its text with the game in it."""
    from unstable_stream.games.environments import check_environment, list_environments, probe  # loads games
    from unstable_stream.games.opponents.scripted import scripted_names

    ids = list_environments()
    if game not in ids and not game.startswith("openspiel:"):
        hint = did_you_mean(game, [*ids, *known], "docs/reference/environments.md lists them")
        raise ConfigError(f"no environment and no example {game!r}; {hint}")
    seats = probe(game)[0] or 2
    check_environment(game, seats)
    name, template, player = "quickstart", "", "the tiny player reads its board"
    try:
        template = template_for(TINY_PLAYER, game)
    except ConfigError:
        name, player = "simpletak", "for Qwen3; a model of another family takes template chat"
        template = "qwen3-zs" if seats > 1 else "qwen3-sp"
    text = re.sub(r"\A(#.*\n)+", "", _text(known[name]))
    set_to = {
        "name": json.dumps(re.sub(r"[^a-z0-9]+", "-", game.lower()).strip("-")),
        "env_id": json.dumps(game),
        "num_players": str(seats),
        "template": json.dumps(template),
    }
    able = scripted_names(game)
    for key in ("opponents", "fixed"):
        listed = re.search(rf"^{key} = (\[.*\])$", text, flags=re.MULTILINE)
        tables = re.findall(r'(\{ name = "([^"]+)".*?\})', listed[1]) if listed else []
        kept = ", ".join(table for table, player_name in tables if player_name in able)
        set_to[key] = f"[{kept}]" if kept else "[]  # no scripted player knows this game"
    for key, value in set_to.items():
        text = _with_line(text, f"{key} =", f"{key} = {value}")
    about = f"# {game}: {player}.\n# What a key means: unstable-stream config explain learner.learning_rate\n"
    return name, f"{about}# unstable-stream train\n{text}"


def _with_line(text: str, begins: str, line: str) -> str:
    """Return a text with another line in place of the first that begins so, if one does."""
    return re.sub(rf"^{re.escape(begins)}.*$", lambda _: line, text, count=1, flags=re.MULTILINE)
