"""Short forms of a configuration's entries: an environment's id, an opponent's name, objects."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from unstable_stream.errors import ConfigError, did_you_mean
from unstable_stream.extensions import KINDS, reference_to
from unstable_stream.games.disguises.naming import plain_id

TINY_PLAYER: Final = "tiny-player"
_BOARDS: Final = {
    "SimpleTak-": "simpletak-board",
    "TicTacToe-": "tictactoe-board",
    "openspiel:kuhn_poker": "kuhn-board",
    "openspiel:leduc_poker": "leduc-board",
}
"""The tiny player's templates, by what an environment's id begins with."""


@dataclass(frozen=True)
class TrainEnvSpec:
    """An environment to train on.

    Args:
        env_id: TextArena id, e.g. ``SimpleTak-v0-train``, or an environment class.
        num_players: seats, the model's own included; ``None``: two, or the fewest that work.
        prompt_template: name or object; ``None``: the one that suits the model.
        weight: how often it is drawn, relative to the others.
    """

    env_id: object
    num_players: int | None = None
    prompt_template: object = None
    weight: float = 1.0


@dataclass(frozen=True)
class EvalEnvSpec:
    """An environment to evaluate in.

    Args:
        env_id: TextArena id.
        num_players: as for :class:`TrainEnvSpec`.
        prompt_template: as for :class:`TrainEnvSpec`.
        fixed_opponent: who is met there; the evaluation's opponents if ``None``. All specs name the same.
    """

    env_id: object
    num_players: int | None = None
    prompt_template: object = None
    fixed_opponent: object = None


def environments(given: object, model: str) -> list[dict[str, Any]]:
    """Return the configuration of environments: one or several ids, tuples, specs or mappings."""
    if isinstance(given, str | type | Mapping | TrainEnvSpec | EvalEnvSpec | BaseModel):
        given = [given]
    elif isinstance(given, tuple) and given and isinstance(given[0], str) and not _are_ids(given):
        given = [given]  # (env_id, players, template)
    if not isinstance(given, Sequence):
        raise ConfigError(f"environments {given!r}: expected a list of ids, e.g. ['SimpleTak-v0-train']")
    return [_environment(each, model) for each in given]


def _are_ids(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) and not value.isdecimal() for value in values)


def _environment(given: object, model: str) -> dict[str, Any]:
    if isinstance(given, BaseModel):
        return given.model_dump(mode="json")
    if isinstance(given, str | type):
        env: dict[str, Any] = {"env_id": given}
    elif isinstance(given, TrainEnvSpec | EvalEnvSpec):
        env = dataclasses.asdict(given) | {"prompt_template": given.prompt_template}
        env.pop("fixed_opponent", None)
    elif isinstance(given, Mapping):
        env = dict(given)
    elif isinstance(given, Sequence) and 1 <= len(given) <= 3:
        env = dict(zip(("env_id", "num_players", "template"), given, strict=False))
    else:
        raise ConfigError(
            f"environment {given!r}: expected an id, (id, players, template), a TrainEnvSpec or a mapping"
        )
    if "env_id" in env and not isinstance(env["env_id"], str):
        env["env_id"] = reference_to("environment", env["env_id"])
    if "prompt_template" in env:
        env["template"] = env.pop("prompt_template")
    env = {name: value for name, value in env.items() if value is not None}
    template = env.get("template")
    if template is None:
        env["template"] = template_for(model, str(env["env_id"])) if "env_id" in env else "default"
    elif not isinstance(template, str):
        env["template"] = reference_to("template", template)
    if "num_players" not in env and "env_id" in env:
        from unstable_stream.games.environments import probe

        env["num_players"] = probe(str(env["env_id"]))[0] or 2  # what cannot be played is told later, by name
    return env


def template_for(model: str, env_id: str) -> str:
    """Return the template that suits a model in an environment.

    Raises:
        ConfigError: the tiny player has none for that game.
    """
    if model == TINY_PLAYER:
        for game, template in _BOARDS.items():
            if plain_id(env_id).startswith(game):
                return template
        from unstable_stream.games.environments import list_environments  # loads the games

        meant = did_you_mean(env_id, [] if env_id in list_environments() else list_environments(), after=" ")
        raise ConfigError(
            f"{meant}the tiny player reads boards of {', '.join(game.rstrip('-') for game in _BOARDS)}, "
            f"not {env_id!r}: train another model, "
            "or name a template of your own: (env_id, players, template)"
        )
    name = model.lower()
    if "base" not in name:
        return "chat"
    return "qwen3-zs" if "qwen" in name else "default"


def tiny_player_defaults() -> dict[str, Any]:
    """Return the settings that the tiny player learns with; see docs/evidence/quickstart-recipe.md."""
    return {
        "sampling": {"max_tokens": 4},
        "collector": {"max_turns": 40},
        "buffer": {"max_staleness": 8},
        "algorithm": {"entropy_coef": 0.02},
        "learner": {"learning_rate": 3e-3, "mini_batch_size": 256, "optimizer_steps": 2},
    }


def opponents(given: object) -> list[dict[str, Any]]:
    """Return the configuration of fixed opponents: one or several names, functions or mappings.

    The directory of a model is that model, any other name with a slash a model of an OpenAI-compatible
    endpoint, and all else a scripted opponent.
    """
    if isinstance(given, str | Mapping | BaseModel) or not isinstance(given, Sequence):
        given = [given]
    return [_opponent(each) for each in given]


def _opponent(given: object) -> dict[str, Any]:
    if isinstance(given, BaseModel):
        return given.model_dump(mode="json")
    if isinstance(given, Mapping):
        objects = {"player": "opponent", "template": "template"}
        return {
            key: reference_to(objects[key], value) if key in objects and value is not None else value
            for key, value in given.items()
        }
    if isinstance(given, str | Path) and (Path(given) / "config.json").is_file():
        return _model_of(Path(given))
    if isinstance(given, str):
        kind = "openai" if "/" in given and ".py:" not in given else "scripted"
        return {"name": given, "kind": kind}
    player = reference_to("opponent", given)
    name = getattr(given, "__name__", type(given).__name__)
    if isinstance(player, str) and player.startswith("object:"):
        name = player.removeprefix("object:")  # two lambdas have one name, and two references
    return {"name": name, "kind": "scripted", "player": player}


def _model_of(directory: Path) -> dict[str, Any]:
    """Return the configuration of an opponent that is a model in a directory, under the directory's name."""
    settings = directory / "tokenizer_config.json"
    chat = (directory / "chat_template.jinja").is_file() or (
        settings.is_file() and '"chat_template"' in settings.read_text("utf-8")
    )
    path = directory.resolve()
    template = "chat" if chat else "default"
    return {"name": path.name, "kind": "model", "path": str(path), "template": template}


def table(kind: str, given: object) -> dict[str, Any]:
    """Return the configuration of an algorithm or an engine: a name, an object or a mapping."""
    if isinstance(given, BaseModel):
        return given.model_dump(mode="json")
    named = reference_to(kind, given)
    spec = {"type": named} if isinstance(named, str) else named
    if kind == "algorithm" and "entropy_decay_updates" in spec and spec["type"] in KINDS[kind].built_in:
        raise ConfigError(
            "algorithm(entropy_decay_updates=…): in a run the entropy bonus reaches zero at the last update; "
            "leave it out"
        )
    return spec
