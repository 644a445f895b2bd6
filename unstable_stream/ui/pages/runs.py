"""All runs of a place: state, progress, win rate, speed, trouble; below them those that were dropped."""

from starlette.requests import Request
from starlette.responses import Response

from unstable_stream.ui.rendering import page
from unstable_stream.ui.site import Shelf, Site

__all__ = ["show"]


def show(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page."""
    return page("runs.html.jinja", site, shelf, runs=shelf.runs(), dropped=shelf.dropped())
