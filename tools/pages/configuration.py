"""Make docs/reference/configuration.md from the configuration models, so that it cannot drift apart."""

from pydantic import BaseModel

from unstable_stream.api.config_keys import as_toml, described, variant_of
from unstable_stream.runs.config import RunConfig, sections_of
from unstable_stream.runs.overlay import PRESETS

_INTRO = """# Configuration

One TOML file describes a run; `--set key.path=value` overrides single keys, where `none` stands
for a default of `none` below; unknown keys are errors. The
resolved configuration is recorded in the run's `run-started` event. This page is generated from
`unstable_stream/runs/` and `unstable_stream/algorithms/settings.py` by `make generated`.

Wherever code is named, your own may stand: see [extending](../how-to/extending.md).

`unstable-stream config explain KEY` shows one key in a terminal. An editor completes keys and shows their
meaning with the JSON Schema: write it once,

```bash
unstable-stream config schema > unstable-stream.schema.json
```

and begin a file with `#:schema ./unstable-stream.schema.json`, which taplo and Even Better TOML in
VS Code read.

`unstable-stream train FILE --dry-run` checks a file and prints it with all defaults filled in, and to the
standard error which process would compute where.
"""


def render() -> str:
    """Return the page."""
    parts = [_INTRO, _section("Top level", RunConfig)]
    for name, field in RunConfig.model_fields.items():
        for model in sections_of(field.annotation):
            several = len(sections_of(field.annotation)) > 1
            variant = f", type = {_variant(model)}" if several and variant_of(model) else ""
            brackets = f"[[{name}]]" if "tuple" in str(field.annotation) else f"[{name}]"
            parts.append(_section(f"`{brackets}`{variant}", model))
        if name == "algorithm":
            parts.append(_presets())
    evaluation = sections_of(RunConfig.model_fields["evaluation"].annotation)[0].model_fields
    named = ("exploitability", "opponents")
    measured, opponent = (sections_of(evaluation[name].annotation)[0] for name in named)
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
            f"{key} = {as_toml(value)}" for key, value in {"type": preset.type, **preset.settings}.items()
        )
        rewards = [as_toml(preset.rewards[stage]) for stage in ("final", "sampling")]
        lines.append(f"| `{name}` | `{algorithm}` | `{rewards[0]}` | `{rewards[1]}` |")
    return "\n".join(lines) + "\n"


def _variant(model: type[BaseModel]) -> str:
    named = variant_of(model)
    return named if model.model_fields["type"].is_required() else f'"{named}"'


def _section(title: str, model: type[BaseModel]) -> str:
    lines = [f"## {title}", ""]
    if model is not RunConfig and model.__doc__:
        lines += [model.__doc__.strip(), ""]
    lines += ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        key = described(name, field)
        kind = f"{key.kind} {key.bounds}".strip() if key.bounds else key.kind
        default = f"`{key.default}`" if key.default not in ("", "required") else key.default
        lines.append(f"| `{name}` | {kind} | {default} | {key.meaning} |")
    return "\n".join(lines) + "\n"
