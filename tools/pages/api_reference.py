"""Make docs/reference/python-api.md from the docstrings of what ``unstable_stream`` exports."""

import inspect
import re
import types
from typing import Any

import unstable_stream as us
from unstable_stream.api.recorded_run import RecordedRun

_INTRO = """# Python API

`import unstable_stream as us`. The command line is a second skin over this: whatever a command can do, a
script can. This page is generated from the docstrings by `make generated`.

<!-- not run: it trains for minutes; the tests of the API run the same in one process -->
```python
import unstable_stream as us
from unstable_stream.api.recorded_run import RecordedRun

run = us.build(model="tiny-player", train_envs=["SimpleTak-v0-train"], evaluation_opponents=["random-legal"])
run.start(iterations=20)
run.sql("SELECT * FROM win_rates")
run.games()[0].show()
run.fork(at=10, learning_rate=1e-4)
```

`backend="inline"` plays a run in this process, without Ray: for notebooks, debuggers and tests. The keys that
`build` takes are those of [configuration.md](configuration.md); extensions are in
[extending.md](../how-to/extending.md). Names of the ancestor are mapped in
[from-unstable-baselines.md](../tutorials/from-unstable-baselines.md).
"""

_SECTIONS = (
    (
        "Runs",
        (
            "build",
            "load",
            "evaluation",
            "disguise_effects",
            "exploitability",
            "exploit",
            "exploiter_bound",
            "heal",
            "branch",
            "branch_values",
            "tournament",
            "sweep",
            "push",
            "open_run",
            "list_runs",
            "sql",
            "Run",
            "Sweep",
            "Table",
            "Game",
        ),
    ),
    ("Environments", ("TrainEnvSpec", "EvalEnvSpec")),
    (
        "The documented parts",
        ("Collector", "ModelPool", "StepBuffer", "StandardLearner", "Tracker", "TerminalInterface"),
    ),
    ("Algorithms", ("Reinforce",)),
)
_ELSEWHERE = "Reward transformations and plug-ins"


def render() -> str:
    """Return the page."""
    told = {name for _, names in _SECTIONS for name in names}
    parts = [_INTRO]
    for title, names in _SECTIONS:
        parts.append(f"## {title}\n")
        parts += [_entry(name) for name in names]
    parts.append(f"## {_ELSEWHERE}\n")
    rest = [name for name in dir(us) if name not in told and not name.startswith("_")]
    parts += [_entry(name) for name in rest if not inspect.ismodule(getattr(us, name))]
    return "\n".join(parts)


def _entry(name: str) -> str:
    """Return the part of one exported name."""
    thing: Any = getattr(us, name)
    lines = [f"### `{name}`", "", *_called(name, thing), _prose(thing), ""]
    if not inspect.isclass(thing):
        return "\n".join(lines)
    if thing.__init__.__doc__ and not thing.__init__.__doc__.startswith("Initialize self"):
        lines += [_prose(thing.__init__), ""]
    own = (each for each in thing.__mro__ if each is thing or each is RecordedRun)
    for member, value in (item for each in own for item in vars(each).items()):
        if member.startswith("_") or not inspect.getdoc(value):
            continue
        if isinstance(value, property | types.FunctionType):
            lines += [f"#### `{name}.{member}`", "", *_called(member, value), _prose(value), ""]
    return "\n".join(lines)


def _called(name: str, thing: Any) -> list[str]:
    """Return the lines that show how a thing is called; none where it is not."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return []
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    shown = signature.replace(parameters=parameters, return_annotation=signature.empty)
    shown_as_text = re.sub(r"<[a-z]+ [^=,]*? at 0x[0-9a-f]+>", "…", str(shown))
    return [f"`{name}{shown_as_text}`", ""]


def _prose(thing: Any) -> str:
    """Return a docstring as Markdown: roles and double backquotes become code, sections become lists."""
    text = inspect.getdoc(thing) or ""
    text = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", text).replace("``", "`")
    text = re.sub(r"\bdocs/([\w-]+/([\w-]+\.md))", r"[\2](../\1)", text)
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line in ("Args:", "Raises:", "Returns:"):
            inside = True
            lines += [f"*{line[:-1]}*", ""]
        elif inside and re.match(r"    \S", line):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon else f"- {line.strip()}")
        elif inside and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        else:
            inside = inside and not line
            lines.append(line)
    return "\n".join(lines)
