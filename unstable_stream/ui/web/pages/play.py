"""Take a seat against a checkpoint."""

from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from unstable_stream.api.human_play import HumanGame
from unstable_stream.archive import query
from unstable_stream.errors import GameError
from unstable_stream.games.opponents.legal_moves import listed_moves
from unstable_stream.history.views.boards import boards_of
from unstable_stream.ui.web.site import Shelf, Site, page

_MOST: Final = 4
"""Games at once: each has the model in memory."""
_CHECKPOINTS: Final = """
    SELECT run_id, concat_ws('/', model, iteration) AS iteration, model_uid FROM checkpoints
    WHERE $run = '' OR run_id = $run ORDER BY occurred_at DESC LIMIT 200
"""
_PATIENCE_S: Final = 3.0
_OFFERED: Final = 40


def show(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the form that begins a game."""
    run = request.query_params.get("run", "")
    found = []
    if shelf.place.has_archive:
        with shelf.reading() as archive:
            found = query(archive, _CHECKPOINTS, {"run": run}).dicts()
    return page("play.html.jinja", site, shelf, checkpoints=found, games=list(site.games.values()))


def begin(site: Site, shelf: Shelf, request: Request) -> Response:
    """Begin a game."""
    form: Mapping[str, str] = request.state.form
    game = site.add_game(
        lambda: HumanGame(
            shelf.place,
            form.get("policy", ""),
            env=form.get("env", "").strip() or None,
            seat=1 if form.get("seat") == "1" else 0,
            name=form.get("name", ""),
        ),
        most=_MOST,
    )
    return RedirectResponse(shelf.href("play", game.game_id), 303)


def _game(site: Site, request: Request) -> HumanGame:
    game = site.games.get(request.path_params["game"])
    if game is None:
        raise HTTPException(404, "This game is not being played here; its record may be among the games.")
    return game


def watch(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the game as it stands; while the other thinks, wait a moment for it, but not ``now``."""
    game = _game(site, request)
    state = game.wait(0.0 if "now" in request.query_params else _PATIENCE_S)
    transcript = game.transcript()
    boards = boards_of(transcript) if transcript.moves else None
    return page(
        "play_game.html.jinja",
        site,
        shelf,
        game=game,
        state=state,
        moves=transcript.moves,
        offers=_offers(game) if state == "yours" else [],
        board=boards[-1] if boards else None,
    )


def _offers(game: HumanGame) -> list[str]:
    """Return the moves that the environment lists, if it does and they are few."""
    try:
        moves = listed_moves(game.observation)
    except GameError:
        return []
    return moves if len(moves) <= _OFFERED else []


def move(site: Site, shelf: Shelf, request: Request) -> Response:
    """Play the person's move."""
    game = _game(site, request)
    game.move(request.state.form.get("action", ""))
    return RedirectResponse(shelf.href("play", game.game_id), 303)


def give_up(site: Site, shelf: Shelf, request: Request) -> Response:
    """End a game."""
    game = _game(site, request)
    game.give_up()
    return RedirectResponse(shelf.href("play", game.game_id), 303)
