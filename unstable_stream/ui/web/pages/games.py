"""Games: found by what happened in them, watched move by move, and asked about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final, get_args
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from unstable_stream.api.asking import ask_moves
from unstable_stream.api.checkpoints import LOADING as PARTS
from unstable_stream.api.game_filter import Result, Sort, Split, State
from unstable_stream.api.games import find_games
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError
from unstable_stream.events import game_id
from unstable_stream.history.hindsight.rederive import advantages
from unstable_stream.history.views.boards import BoardPicture, boards_of, cards_of
from unstable_stream.history.views.branches import Branch, Course, branches_from, courses
from unstable_stream.history.views.transcript import (
    Token,
    Transcript,
    load_transcript,
    played_moves,
    surprises,
    surprising_moves,
    tokens_of,
)
from unstable_stream.inference.exploitability import StatePolicy
from unstable_stream.ui.web.site import Job, Shelf, Site, page

_PAGE: Final = 50
_MOST_TOKENS: Final = 2000
_TEXTS: Final = ("run", "split", "state", "env", "model", "opponent", "result", "text", "sort")
_NUMBERS: Final = ("seat", "update", "min_moves", "max_moves")
_FLAGS: Final = ("invalid", "truncated")


@dataclass(frozen=True, slots=True)
class _Watched:
    """One game with all that is shown of it."""

    transcript: Transcript
    boards: Sequence[BoardPicture | None]
    """By move; empty for a game without boards."""
    cards: Mapping[int, Mapping[str, str]]
    """The cards that a seat saw, by turn and by whose they are."""
    surprises: Sequence[int]
    """The turns of the least probable answers, the least first."""
    tokens: Mapping[int, Sequence[Token]]
    with_texts: bool
    advantages: Mapping[str, float]
    """By step."""
    branches: Mapping[int, Sequence[Branch]]
    """The branches from its positions, by turn."""
    courses: Sequence[Course]
    """The course of the value of its positions."""


def find(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the games that fit the form, a page of them."""
    asked, filters, number = _wish(request)
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
        return _list_query(asked, to)

    return page(
        "games.html.jinja",
        site,
        shelf,
        games=rows[:_PAGE],
        asked=asked,
        number=number,
        before=turned(number - 1) if number > 1 else None,
        after=turned(number + 1) if len(rows) > _PAGE else None,
        of_list=turned(number),
        runs=runs,
        splits=get_args(Split),
        states=get_args(State),
        results=get_args(Result),
        sorts=get_args(Sort),
    )


def _wish(request: Request) -> tuple[dict[str, str], dict[str, str | int | bool], int]:
    """Return what a list is asked for: as it was asked, as filters, and the number of the page."""
    asked = {name: value for name, value in request.query_params.items() if value}
    filters: dict[str, str | int | bool] = {name: asked[name] for name in _TEXTS if name in asked}
    filters |= {name: _number(name, asked[name]) for name in _NUMBERS if name in asked}
    filters |= {name: True for name in _FLAGS if name in asked}
    return asked, filters, _number("page", asked.get("page", "1"))


def _list_query(asked: Mapping[str, str], number: int) -> str:
    """Return the part of an address that asks for this page of a list."""
    kept = [(name, asked[name]) for name in (*_TEXTS, *_NUMBERS, *_FLAGS) if name in asked]
    return "?" + urlencode([*kept, ("page", str(number))])


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
    near = {} if other else _neighbours(shelf, request, games[0].transcript)
    job = site.jobs.find(request.query_params.get("asked", ""))
    with shelf.reading() as archive:
        checkpoints = query(archive, _ASKABLE, {"run": games[0].transcript.run_id}).dicts()
    return page(
        "game.html.jinja",
        site,
        shelf,
        games=games,
        beside=other or "",
        near=near,
        checkpoints=checkpoints,
        job=job if job and job.asked.get("game") == games[0].transcript.game_id else None,
        PARTS=PARTS,
    )


def ask(site: Site, shelf: Shelf, request: Request) -> Response:
    """Begin to ask a checkpoint for the probabilities of moves of a game, and lead to the game."""
    form: Mapping[str, str] = request.state.form
    game, policy, turn = request.path_params["game"], form.get("policy", ""), form.get("turn", "")
    turns = None if turn == "all" else [_number("turn", turn)]

    def work(job: Job) -> dict[int, StatePolicy]:
        found: dict[int, StatePolicy] = {}
        job.result = found
        ask_moves(shelf.place, game, policy, turns, found.__setitem__, on_progress=job.tell)
        return found

    job = site.jobs.start("moves", f"Moves of {policy}", work, asked={"policy": policy, "game": game})
    to = "" if turns is None else f"#move-{turns[0]}"
    return RedirectResponse(f"{shelf.href('games', game)}?asked={job.id}{to}", 303)


def asked(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the answers so far, for the page of the game."""
    job = site.jobs.find(request.path_params["job"])
    if job is None or job.kind != "moves":
        raise HTTPException(404, "The answers of an earlier start are forgotten: ask again.")
    with shelf.reading() as archive:
        moves = load_transcript(archive, job.asked["game"]).moves
    return page("asked_parts.html.jinja", site, shelf, job=job, moves=moves, PARTS=PARTS)


def _neighbours(shelf: Shelf, request: Request, one: Transcript) -> dict[str, str]:
    """Return the addresses of the games before and after one, in the list that led to it, and of the list.

    Without a list they are the games of its run and split.
    """
    found: dict[str, str] = {}
    if "page" in request.query_params:
        asked, filters, number = _wish(request)
        first = max(0, _PAGE * (number - 1) - 1)
        limits: dict[str, int] = {"limit": _PAGE + 2, "offset": first}
        with shelf.reading() as archive:
            rows = find_games(archive, **limits, **filters).dicts()  # type: ignore[arg-type]  # as in find
        listed = [row["game"] for row in rows]
        found["of_list"] = shelf.href("games") + _list_query(asked, number)
        if one.game_id in listed:
            at = listed.index(one.game_id)
            for name, place in (("before", at - 1), ("after", at + 1)):
                if 0 <= place < len(listed):
                    query_of = _list_query(asked, (first + place) // _PAGE + 1)
                    found[name] = shelf.href("games", listed[place]) + query_of
        return found
    near = {
        name: game_id(one.run_id, one.split, index)
        for name, index in (("before", one.game_index - 1), ("after", one.game_index + 1))
        if index >= 0
    }
    with shelf.reading() as archive:
        known = query(archive, "SELECT game_id FROM games WHERE game_id IN (?, ?)", [*near.values(), ""][:2])
    there = {game for (game,) in known.rows}
    return {name: shelf.href("games", game) for name, game in near.items() if game in there}


def small_boards(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the last boards of some games, for those who look at a list."""
    asked = request.query_params.getlist("game")[:_PAGE]
    with shelf.reading() as archive:
        played = played_moves(archive, asked)
    boards = {game: (boards_of(*of) or [None])[-1] for game, of in played.items()}
    return page("boards.html.jinja", site, shelf, boards=boards)


def surprise(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the least probable answers of a run."""
    run = shelf.run(request.path_params["run"])
    rows = shelf.remember(("surprises", run.run_id), partial(surprising_moves, run_id=run.run_id))
    return page("surprises.html.jinja", site, shelf, run_id=run.run_id, rows=rows)


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
        branches = branches_from(archive, transcript.game_id)
    found: dict[str, float] = {}
    for model, update in {(move.model, move.update) for move in transcript.moves if move.update is not None}:
        found |= shelf.remember(
            ("advantages", transcript.run_id, model, update),
            partial(advantages, run_id=transcript.run_id, update=update, model=model),
        )
    moves = transcript.moves
    return _Watched(
        transcript,
        boards_of(transcript.env_id, moves) or (),
        {move.game_turn: cards_of(move.observation) for move in moves},
        surprises(moves),
        tokens,
        with_texts,
        found,
        _by_turn(branches, transcript),
        courses(branches),
    )


def _by_turn(branches: Sequence[Branch], transcript: Transcript) -> dict[int, list[Branch]]:
    """Group by turn: first without another move, then the moves by what they are worth to who made them."""

    def rank(branch: Branch) -> tuple[int, bool, float]:
        seat = transcript.moves[branch.turn].seat
        return (branch.turn, bool(branch.tried), -branch.values[seat].value)

    return {
        turn: list(group) for turn, group in groupby(sorted(branches, key=rank), key=lambda each: each.turn)
    }


_ASKABLE: Final = """
    SELECT run_id, concat_ws('/', model, iteration) AS iteration, NULL AS rating FROM checkpoints
    ORDER BY run_id IN (SELECT unnest([run_id, parent_run_id]) FROM runs WHERE run_id = $run) DESC,
        occurred_at DESC LIMIT 200
"""
