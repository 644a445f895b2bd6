"""The routes, and the server-sent events that tell pages when an archive has changed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from unstable_stream.archive import Cancel
from unstable_stream.errors import (
    ArchiveError,
    CheckpointError,
    ConfigError,
    EventLogError,
    RunError,
    UnstableStreamError,
)
from unstable_stream.ui.web.guard import Guard
from unstable_stream.ui.web.pages import games, play, run, sql, what_if, why
from unstable_stream.ui.web.site import Shelf, Site, page

_LONGEST_FORM: Final = 64 * 1024
_LOOK_S: Final = 0.5
_REMIND_S: Final = 15.0
"""A connection that says nothing for longer may be cut by whatever is between."""
_WITH_FILES: Final = ("unstable_stream.ui.web", "unstable_stream.history.views.report")
_TITLES: Final = {400: "This cannot be done", 403: "Refused", 404: "Not found", 503: "Busy"}


Page: TypeAlias = Callable[[Site, Shelf, Request], Response]
"""Makes a page of one place; it may block, and is called in a thread."""
ROUTES: Final[Sequence[tuple[str, Page, Sequence[str]]]] = (
    ("/", run.show_all, ("GET",)),
    ("/runs/{run}", run.show, ("GET",)),
    ("/runs/{run}/surprises", games.surprise, ("GET",)),
    ("/runs/{run}/health", run.health, ("GET",)),
    ("/runs/{run}/latest", run.latest_games, ("GET",)),
    ("/runs/{run}/results", run.results, ("GET",)),
    ("/runs/{run}/wrong", run.wrong, ("GET",)),
    ("/runs/{run}/cost", run.cost, ("GET",)),
    ("/charts.json", run.curves, ("GET",)),
    ("/charts.csv", run.curve_csv, ("GET",)),
    ("/numbers", run.numbers, ("GET",)),
    ("/games", games.find, ("GET",)),
    ("/games/beside", games.pair, ("GET",)),
    ("/games/boards", games.small_boards, ("GET",)),
    ("/games/of/{trajectory}", sql.game_of, ("GET",)),
    ("/games/{game}", games.watch, ("GET",)),
    ("/games/{game}/ask", games.ask, ("POST",)),
    ("/asked/{job}", games.asked, ("GET",)),
    ("/sql", sql.show, ("GET",)),
    ("/data", sql.browse, ("GET",)),
    ("/sql/rows", sql.rows, ("GET",)),
    ("/sql/values", sql.values, ("GET",)),
    ("/sql/rows.csv", sql.download_csv, ("GET",)),
    ("/sql/rows.parquet", sql.download_parquet, ("GET",)),
    ("/why", why.show, ("GET",)),
    ("/what-if", what_if.show, ("GET",)),
    ("/what-if/ratings", what_if.rate, ("POST",)),
    ("/what-if/rewards", what_if.reward, ("POST",)),
    ("/what-if/{job}", what_if.watch, ("GET",)),
    ("/play", play.show, ("GET",)),
    ("/play", play.begin, ("POST",)),
    ("/play/{game}", play.watch, ("GET",)),
    ("/play/{game}/move", play.move, ("POST",)),
    ("/play/{game}/give-up", play.give_up, ("POST",)),
    ("/compare", run.compare, ("GET",)),
    ("/diff", run.differ, ("GET",)),
)
"""Path after the place's name, the function that answers, methods."""


def build_app(site: Site, *, token: str, hosts: Collection[str]) -> Starlette:
    """Return the application; for ``token`` and ``hosts`` see :class:`guard.Guard`."""

    def shelf_of(request: Request) -> Shelf:
        shelf = site.shelves.get(request.path_params["place"])
        if shelf is None:
            raise HTTPException(404, "There is no such place.")
        return shelf

    async def answer(make: Page, request: Request) -> Response:
        shelf = shelf_of(request)
        if request.method == "POST":
            request.state.form = await _form(request)
        request.state.gone = Cancel()
        watching = asyncio.create_task(_watch(request, request.state.gone))
        try:
            return await run_in_threadpool(make, site, shelf, request)
        finally:
            watching.cancel()

    def home(request: Request) -> Response:
        if len(site.shelves) == 1:
            return RedirectResponse(next(iter(site.shelves.values())).href() + "/")
        return page("places.html.jinja", site)

    async def events(request: Request) -> Response:
        return StreamingResponse(_told(shelf_of(request), request), media_type="text/event-stream")

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            status = error.status_code
            says = error.detail if error.detail != "Not Found" else "There is no such page."
        else:
            assert isinstance(error, UnstableStreamError)
            status, says = _status(error), str(error)
        shelf = site.shelves.get(request.url.path.split("/")[1])  # a way on from what was not there
        title = _TITLES.get(status, "Error")
        return page("error.html.jinja", site, shelf, status=status, title=title, says=says)

    routes: list[BaseRoute] = [
        Route("/", home),
        Mount("/static", StaticFiles(packages=[(each, "static") for each in _WITH_FILES])),
        Route("/{place}/events", events),
        *(
            Route("/{place}" + path, partial(answer, make), methods=list(methods), name=path)
            for path, make, methods in ROUTES
        ),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
        exception_handlers=dict.fromkeys((UnstableStreamError, HTTPException), refused),
    )


async def _watch(request: Request, gone: Cancel) -> None:
    """End the query of a browser that waits for it no longer."""
    while not await request.is_disconnected():
        await asyncio.sleep(_LOOK_S)
    gone()


def _status(error: UnstableStreamError) -> int:
    if error.retriable:
        return 503
    if isinstance(error, ConfigError):
        return 400
    missing = (ArchiveError, CheckpointError, EventLogError, RunError)
    return 404 if isinstance(error, missing) else 500


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form as browsers send it by default."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_FORM:
            raise HTTPException(413, "The form is too long.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


async def _told(shelf: Shelf, request: Request) -> AsyncIterator[str]:
    """Yield an event ``changed`` now, and whenever the archive is written to."""
    yield "retry: 2000\n\n"
    known = ""
    silent_s = 0.0
    while not await request.is_disconnected():
        state = shelf.state()
        if state != known:
            known, silent_s = state, 0.0
            yield f"event: changed\ndata: {state}\n\n"
        elif silent_s >= _REMIND_S:
            silent_s = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(_LOOK_S)
        silent_s += _LOOK_S
