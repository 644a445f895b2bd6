"""Make docs/reference/configuration.md from the configuration models, so that it cannot drift apart."""

from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.overlay import PRESETS

_NAMES: Final = {bool: "boolean", int: "integer", float: "number", str: "text", dict: "table"}

_INTRO = """# Configuration

One TOML file describes a run; `--set key.path=value` overrides single keys; unknown keys are errors. The
resolved configuration is recorded in the run's `run-started` event. This page is generated from
`unstable_stream/runs/` and `unstable_stream/algorithms/settings.py` by `make generated`.

Wherever code is named, your own may stand: see [extending](../how-to/extending.md).

`unstable-stream train FILE --dry-run` checks a file and prints it with all defaults filled in, and to the
standard error which process would compute where.
"""


def render() -> str:
    """Return the page."""
    parts = [_INTRO, _section("Top level", RunConfig)]
    for name, field in RunConfig.model_fields.items():
        for model in _models(field.annotation):
            tag = model.model_fields.get("type")
            variant = f", type = {_variant(tag)}" if tag and len(_models(field.annotation)) > 1 else ""
            brackets = f"[[{name}]]" if "tuple" in str(field.annotation) else f"[{name}]"
            parts.append(_section(f"`{brackets}`{variant}", model))
        if name == "algorithm":
            parts.append(_presets())
    evaluation = _models(RunConfig.model_fields["evaluation"].annotation)[0].model_fields
    measured, opponent = (_models(evaluation[name].annotation)[0] for name in ("exploitability", "opponents"))
    parts.append(_section("`[evaluation.exploitability]`", measured))
    parts.append(_section("Opponents (`evaluation.opponents`, `model_pool.fixed`)", opponent))
    return "\n".join(parts)


def _presets() -> str:
    lines = [
        "## `[algorithm]`, presets",
        "",
        "Names that `algorithm.type` takes besides. A run records what they stand for; what is set beside "
        "them is stronger. [algorithms.md](../explanation/algorithms.md) has their formulas.",
        "",
        "| Name | `algorithm` | `rewards.final` | `rewards.sampling` |",
        "|---|---|---|---|",
    ]
    for name, preset in PRESETS.items():
        algorithm = ", ".join(
            f"{key} = {_toml(value)}" for key, value in {"type": preset.type, **preset.settings}.items()
        )
        rewards = [_toml(preset.rewards[stage]) for stage in ("final", "sampling")]
        lines.append(f"| `{name}` | `{algorithm}` | `{rewards[0]}` | `{rewards[1]}` |")
    return "\n".join(lines) + "\n"


def _variant(tag: Any) -> str:
    return "an extension" if tag.is_required() else f'"{tag.default}"'


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return list(dict.fromkeys(model for argument in get_args(annotation) for model in _models(argument)))


def _section(title: str, model: type[BaseModel]) -> str:
    lines = [f"## {title}", ""]
    if model is not RunConfig and model.__doc__:
        lines += [model.__doc__.strip(), ""]
    lines += ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if _models(field.annotation) and not isinstance(field.default, int):
            default, kind = "", "section"
        else:
            default = (
                "required"
                if field.is_required()
                else f"`{_toml(field.get_default(call_default_factory=True))}`"
            )
            kind = type_name(field.annotation)
        meaning = " ".join((field.description or "").replace("``", "`").split())
        lines.append(f"| `{name}` | {kind} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return str(value)


def type_name(annotation: Any) -> str:
    """Return how the page calls the type of a key, which is never empty."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_name(part) for part in parts if part is not type(None)))
    if origin is Literal:
        return f"one of {', '.join(f'`{choice}`' for choice in parts)}"
    if origin in (tuple, list):
        return "list of" + type_name(parts[0]).removeprefix("one of") if "Literal" in str(parts) else "list"
    if _models(annotation):
        return "section"
    return _NAMES[origin or annotation]
