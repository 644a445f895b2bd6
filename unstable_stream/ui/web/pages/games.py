"""Games: found by what happened in them, watched move by move, and played against a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, get_args
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from unstable_stream.api.game_filter import Result, Sort, Split, State
from unstable_stream.api.games import find_games
from unstable_stream.api.human_play import HumanGame
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError, GameError
from unstable_stream.games.opponents.legal_moves import listed_moves
from unstable_stream.history.hindsight.rederive import advantages
from unstable_stream.history.views.boards import BoardPicture, boards_of
from unstable_stream.history.views.transcript import Token, Transcript, load_transcript, tokens_of
from unstable_stream.ui.web.site import Shelf, Site, page

_PAGE: Final = 50
_MOST_TOKENS: Final = 2000
_TEXTS: Final = ("run", "split", "state", "env", "model", "opponent", "result", "text", "sort")
_NUMBERS: Final = ("seat", "update", "min_moves", "max_moves")
_FLAGS: Final = ("invalid", "truncated")


@dataclass(frozen=True, slots=True)
class _Watched:
    """One game with all that is shown of it."""

    transcript: Transcript
    boards: Sequence[BoardPicture] | None
    tokens: Mapping[int, Sequence[Token]]
    with_texts: bool
    advantages: Mapping[str, float]
    """By step."""


def find(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the games that fit the form, a page of them."""
    asked = {name: value for name, value in request.query_params.items() if value}
    number = _number("page", asked.get("page", "1"))
    filters: dict[str, str | int | bool] = {name: asked[name] for name in _TEXTS if name in asked}
    filters |= {name: _number(name, asked[name]) for name in _NUMBERS if name in asked}
    filters |= {name: True for name in _FLAGS if name in asked}
    rows: Sequence[Mapping[str, object]] = ()
    runs: Sequence[Mapping[str, object]] = ()
    if shelf.place.has_archive:
        with shelf.reading() as archive:
            # Their names alone: what the list of runs says of them takes longer than to find the games.
            runs = query(archive, "SELECT run_id, name FROM runs ORDER BY started_at DESC, run_id").dicts()
            rows = find_games(
                archive,
                limit=_PAGE + 1,
                offset=_PAGE * (number - 1),
                **filters,  # type: ignore[arg-type]  # names and types are those of the form
            ).dicts()

    def turned(to: int) -> str:
        kept = [(name, value) for name, value in asked.items() if name != "page"]
        return "?" + urlencode([*kept, ("page", str(to))])

    return page(
        "games.html.jinja",
        site,
        shelf,
        games=rows[:_PAGE],
        asked=asked,
        number=number,
        before=turned(number - 1) if number > 1 else None,
        after=turned(number + 1) if len(rows) > _PAGE else None,
        runs=runs,
        splits=get_args(Split),
        states=get_args(State),
        results=get_args(Result),
        sorts=get_args(Sort),
    )


def _number(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not (name == "page") <= number < 2**31:
        raise ConfigError(f"{name}={text!r}: expected a whole number")
    return number


def watch(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return a game, or two beside each other."""
    games = [_watched(shelf, request.path_params["game"])]
    other = request.query_params.get("beside")
    if other:
        games.append(_watched(shelf, other))
    return page("game.html.jinja", site, shelf, games=games, beside=other or "")


def pair(site: Site, shelf: Shelf, request: Request) -> Response:
    """Lead to the page of the one or two games that were chosen in the list."""
    chosen = list(dict.fromkeys(request.query_params.getlist("game")))
    if not 1 <= len(chosen) <= 2:
        raise ConfigError(f"{len(chosen)} games are chosen: choose the two to watch beside each other")
    rest = "?" + urlencode({"beside": chosen[1]}) if len(chosen) > 1 else ""
    return RedirectResponse(shelf.href("games", chosen[0]) + rest, 303)


def _watched(shelf: Shelf, game: str) -> _Watched:
    with shelf.reading() as archive:
        transcript = load_transcript(archive, game)
        tokens, with_texts = tokens_of(archive, transcript, most=_MOST_TOKENS)
    found: dict[str, float] = {}
    for model, update in {(move.model, move.update) for move in transcript.moves if move.update is not None}:
        found |= shelf.remember(
            ("advantages", transcript.run_id, model, update),
            partial(advantages, run_id=transcript.run_id, update=update, model=model),
        )
    return _Watched(transcript, boards_of(transcript), tokens, with_texts, found)


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


def watch_own(site: Site, shelf: Shelf, request: Request) -> Response:
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
