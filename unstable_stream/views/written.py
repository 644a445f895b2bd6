"""Write values as pages show them: numbers, shares, times, and texts of models that stay text."""

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

__all__ = ["FILTERS", "config_text", "digest", "inert", "number", "share"]

_MOST_CHARACTERS: Final = 6000
# Background strengths of a token; the page has a class for each.
_SHADES: Final = 6
_NATS_OF_A_SHADE: Final = 0.9


def config_text(config: Any) -> str:
    """Return a configuration as indented JSON. ``Any``: JSON."""
    return json.dumps(config, indent=2, ensure_ascii=False)


def digest(script: str) -> str:
    """Return the digest by which a content security policy names a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def inert(text: str) -> str:
    """Return JSON that no HTML parser takes for markup; the page marks it as safe."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def number(value: float | None) -> str:
    """Return four digits of it, whole numbers in full."""
    if value is None:
        return "–"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4g}".replace("-", "−")


def share(value: float | None) -> str:
    """Return a share, 0 to 1, in percent."""
    return "–" if value is None else f"{100 * value:.1f} %"


def _duration(seconds: float) -> str:
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
    percent = 100 * math.exp(min(0.0, logprob))
    return f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.2g} %"


FILTERS: Final[Mapping[str, Callable[..., object]]] = {
    "number": number,
    "share": share,
    "duration": _duration,
    "moment": _moment,
    "cut": _cut,
    "shade": _shade,
    "probability": _probability,
    "inert": inert,
    "signed": _signed,
}
"""For templates, by the names that they use."""
