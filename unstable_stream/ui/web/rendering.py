"""Fill templates. All values are escaped; what models wrote stays text, control characters included."""

import functools
from collections.abc import Sequence
from typing import Any, Final

import jinja2
from starlette.responses import HTMLResponse

from unstable_stream.console import plain
from unstable_stream.history.views.written import FILTERS
from unstable_stream.ui.web.site import Shelf, Site
from unstable_stream.version import __version__

_SPARK_WIDTH: Final = 120
_SPARK_HEIGHT: Final = 28


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("unstable_stream.ui.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {**FILTERS, "plain": plain, "spark": _spark}
    return environment


def page(
    template: str, site: Site, shelf: Shelf | None = None, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """Return a page. ``Any``: what its template asks for."""
    text = _templates().get_template(template).render(site=site, shelf=shelf, version=__version__, **values)
    return HTMLResponse(text, status)


def _spark(values: Sequence[float]) -> str:
    """Return the points of a small curve of shares, 0 to 1, for an SVG of 120 by 28."""
    last = max(1, len(values) - 1)
    places = [
        (1 + (_SPARK_WIDTH - 2) * number / last, 1 + (_SPARK_HEIGHT - 2) * (1 - value))
        for number, value in enumerate(values)
    ]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
