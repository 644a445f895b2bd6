"""Write values as pages show them: numbers, shares, times, texts of models that stay text, rows as CSV, and
how the configurations of runs differ.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import IO, Any, Final

_MOST_CHARACTERS: Final = 6000
# Background strengths of a token; the page has a class for each.
_SHADES: Final = 6
_NATS_OF_A_SHADE: Final = 0.9
_ROUNDING: Final = 1e-12
"""A mean of rewards that is nearer to zero is zero but for rounding."""


def config_text(config: Any) -> str:
    """Return a configuration as indented JSON. ``Any``: JSON."""
    return json.dumps(config, indent=2, ensure_ascii=False)


def number(value: float | None) -> str:
    """Return four digits of it, whole numbers in full."""
    if value is None:
        return "–"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _signed(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{0.0 if abs(value) < _ROUNDING else value:+.4g}".replace("-", "−")


def share(value: float | None) -> str:
    """Return a share, 0 to 1, in percent."""
    return "–" if value is None else f"{100 * value:.1f} %"


def duration(seconds: float) -> str:
    """Return seconds in the unit that fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _moment(value: datetime | None) -> str:
    return "–" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def _cut(text: str) -> str:
    """Return the text, without its middle if it is very long."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = _MOST_CHARACTERS // 2
    return f"{text[:half]}\n\n… {len(text) - 2 * half:,} characters left out …\n\n{text[-half:]}"


def _shade(logprob: float) -> int:
    """Return the strength of a token's colour: 0 for a likely token, 5 for an unlikely one."""
    return min(_SHADES - 1, int(-logprob / _NATS_OF_A_SHADE)) if math.isfinite(logprob) else _SHADES - 1


def _probability(logprob: float) -> str:
    percent = 100 * _chance(logprob)
    return f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.2g} %"


def _chance(logprob: float) -> float:
    """Return the probability, between 0 and 1 whatever was recorded."""
    return math.exp(min(0.0, logprob)) if not math.isnan(logprob) else 0.0


_FILTERS: Final[Mapping[str, Callable[..., object]]] = {
    "number": number,
    "share": share,
    "duration": duration,
    "moment": _moment,
    "cut": _cut,
    "shade": _shade,
    "probability": _probability,
    "chance": _chance,
    "signed": _signed,
}
"""For templates, by the names that they use."""


@cache
def templates(package: str) -> Any:
    """Return the templates of a package, compiled once in a process, which escape what they are given and may
    import those of the report.

    ``Any``: Jinja's ``Environment``. Jinja may not be installed, which raises ``ModuleNotFoundError``.
    """
    import jinja2

    made = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    places = dict.fromkeys((package, "unstable_stream.history.views.report"))
    made.loader = jinja2.ChoiceLoader([jinja2.PackageLoader(place) for place in places])
    made.filters |= _FILTERS
    return made


def write_csv(file: IO[str], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a header and the rows. ``Any``: what DuckDB makes of the columns' types."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell_text(value) for value in row] for row in rows)


def cell_text(value: Any) -> str:
    """Return a value as text, nothing for NULL. ``Any``: as in :func:`write_csv`."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds" if value.microsecond else "seconds")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | dict):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)


def config_differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the keys that the configurations do not share, each with its value in every one.

    A list, such as that of opponents, is one value. ``Any``: JSON.
    """
    flat = [flattened(config) for config in configs]
    keys = sorted({key for one in flat for key in one})
    values = [(key, [one.get(key, "not set") for one in flat]) for key in keys]
    return [(key, each) for key, each in values if len({*each}) > 1]


def flattened(value: Any, prefix: str = "") -> dict[str, str]:
    """Return each value of nested sections as JSON, by its path. ``Any``: JSON."""
    if not isinstance(value, dict):
        return {prefix: json.dumps(value, ensure_ascii=False)}
    return {
        name: item
        for key, below in value.items()
        for name, item in flattened(below, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def named_items(text: str) -> str:
    """Return a value of :func:`flattened`; of a list of tables only their names, environments or types."""
    if not text.startswith("[{"):
        return text
    keys = ("name", "env_id", "type")
    items = json.loads(text)
    return ", ".join(str(next((item[key] for key in keys if item.get(key)), item)) for item in items)
