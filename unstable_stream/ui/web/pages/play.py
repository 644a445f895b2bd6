"""Games that people play here: against a checkpoint, or against each other, also many in a tournament."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import permutations
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from unstable_stream.api.human_play import LOADING, HumanGame
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError, GameError
from unstable_stream.games.opponents.legal_moves import legal_moves
from unstable_stream.history.views.boards import BoardPicture, board_now, cards_of
from unstable_stream.history.views.people import PeopleGame, people_games, standings
from unstable_stream.history.views.transcript import load_transcript, surprises
from unstable_stream.ui.web.pages.narrowing import number
from unstable_stream.ui.web.site import Shelf, Site, page

_MOST: Final = 4
"""Games at once: each has the model in memory."""
_CHECKPOINTS: Final = """
    SELECT run_id, concat_ws('/', c.model, c.iteration) AS iteration, conservative AS rating
    FROM checkpoints AS c LEFT JOIN (FROM rating_ladder WHERE env_id = '*') USING (run_id, model_uid)
    WHERE $run = '' OR run_id = $run
    ORDER BY run_id IN (SELECT run_id FROM updates) DESC, occurred_at DESC LIMIT 200
"""
_PATIENCE_S: Final = 3.0
_LOADING_S: Final = 0.5
"""It is told more often how far the loading is."""
_OFFERED: Final = 120
_MOST_PEOPLE: Final = 12


def show(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the forms that begin a game or a tournament, and the tournament that the address names."""
    asked = {"how": "pairs", "policy": "", "env": "", "clock": ""} | dict(request.query_params)
    found: Sequence[Mapping[str, object]] = []
    played: list[PeopleGame] = []
    said = [each.strip()[:60] for each in asked.get("names", "").split(",")]
    names = list(dict.fromkeys(filter(None, said)))
    since = number("since", asked.get("since") or "0")
    if shelf.place.has_archive:
        with shelf.reading() as archive:
            found = query(archive, _CHECKPOINTS, {"run": asked.get("run", "")}).dicts()
            played = people_games(archive, since)
    meetings = _meetings(names, each_pair=asked["how"] != "checkpoint")
    results: dict[tuple[str, str], PeopleGame] = {}
    for game in played:
        if game.players in meetings and any(game.results):
            results.setdefault(game.players, game)
    return page(
        "play.html.jinja",
        site,
        shelf,
        checkpoints=found,
        games=list(site.games.values()),
        asked=asked,
        query=request.url.query,
        meetings={meeting: results.get(meeting) for meeting in meetings},
        standings=standings(list(results.values()) if names else played),
        now=int(time.time()),
    )


def _meetings(names: Sequence[str], *, each_pair: bool) -> list[tuple[str, str]]:
    """Return who meets whom, who begins first; without a name: the checkpoint."""
    if len(names) > _MOST_PEOPLE or (each_pair and len(names) == 1):
        raise ConfigError(f"{len(names)} names: expected 2 to {_MOST_PEOPLE}, with commas between them")
    if each_pair:
        return sorted(permutations(names, 2), key=lambda pair: names.index(pair[0]) > names.index(pair[1]))
    return [(name, "") for name in names] + [("", name) for name in names]


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
            other=form.get("other", ""),
            clock_s=60 * number("clock", form["clock"]) if form.get("clock", "").strip() else None,
        ),
        most=_MOST,
        begun_from=form.get("back", ""),
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
    patience_s = _LOADING_S if game.state == "loading" else _PATIENCE_S
    state = game.wait(0.0 if "now" in request.query_params else patience_s)
    moves = game.moves
    board = board_now(game.env_id, moves, game.to_move, game.observation if state == "yours" else "")
    offers = _offers(game, board) if state == "yours" else {}
    hints = None
    if state == "over" and moves:
        with shelf.reading() as archive:
            recorded = load_transcript(archive, game.game_id).moves
        hints = recorded if len(recorded) == len(moves) else None
    return page(
        "play_game.html.jinja",
        site,
        shelf,
        game=game,
        state=state,
        back=site.begun_from.get(game.game_id, ""),
        clocks={seat: left for seat in sorted(game.people) if (left := game.left_s(seat)) is not None},
        moves=hints or moves,
        seconds=[(move.latency_ms or 0.0) / 1000 for move in moves],
        hinted=hints is not None and len(game.people) == 1,
        surprises=surprises(hints or ()),
        offers=offers,
        cards=cards_of(game.observation),
        board=board,
        LOADING=LOADING,
    )


def _offers(game: HumanGame, board: BoardPicture | None) -> Mapping[str, Sequence[int]]:
    """Return the moves that the environment lists or its board allows, if they are few or have cells, and the
    cells of each.
    """
    with suppress(GameError):
        moves = {move: board.called(move) if board else () for move in legal_moves(game.observation)}
        # In chess several moves may be called by the same cell: a click on it names none of them.
        named = Counter(moves.values())
        moves = {move: cells if named[cells] == 1 else () for move, cells in moves.items()}
        return moves if len(moves) <= _OFFERED or all(moves.values()) else {}
    return {}


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
