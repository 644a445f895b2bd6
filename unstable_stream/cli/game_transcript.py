"""A game's transcript on a terminal. All text of games and models is shown literally, markup included."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from unstable_stream.archive.transcript import Move, SeatLine, Transcript
from unstable_stream.cli.query_output import plain

__all__ = ["render"]

_SEAT_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def render(transcript: Transcript) -> RenderableType:
    """Return the whole transcript, ready to print."""
    return Group(*_header(transcript), *_moves(transcript), *_ending(transcript))


def _colour(seat: int) -> str:
    return _SEAT_COLOURS[seat % len(_SEAT_COLOURS)]


def _header(transcript: Transcript) -> Iterator[RenderableType]:
    yield Text(transcript.env_id or "unknown environment", style="bold")
    facts = Table.grid(padding=(0, 2))
    facts.add_row("game", Text(f"{transcript.game_id} ({transcript.split} {transcript.game_index})"))
    facts.add_row("run", Text(transcript.run_id))
    facts.add_row("seed", "–" if transcript.seed is None else str(transcript.seed))
    for name, moment in (("started", transcript.started_at), ("ended", transcript.ended_at)):
        if moment is not None:
            facts.add_row(name, f"{moment:%Y-%m-%d %H:%M:%S} UTC")
    yield facts
    seats = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("seat", "model", "kind", "template", "role"):
        seats.add_column(heading)
    for line in transcript.seats:
        seats.add_row(
            Text(str(line.seat), style=_colour(line.seat)),
            Text(line.model_uid + (" (trained)" if line.trained else "")),
            Text(line.kind),
            Text(line.template or "–"),
            Text(line.role or "–"),
        )
    yield Text()
    yield seats


def _moves(transcript: Transcript) -> Iterator[RenderableType]:
    names = {line.seat: line.model_uid for line in transcript.seats}
    for move in transcript.moves:
        colour = _colour(move.seat)
        title = Text(f"move {move.game_turn} · seat {move.seat} · {names.get(move.seat, '?')}", style=colour)
        yield Rule(title, align="left", style=colour)
        if move.observation is not None:
            yield _block("sees", move.observation, "dim")
        if move.completion is not None:
            yield _block("writes", move.completion, "")
        yield _action(move)


def _block(label: str, text: str, style: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=6, style="bold dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(label, Text(plain(text.strip("\n")), style=style))
    return Padding(grid, (0, 0, 0, 1))


def _action(move: Move) -> RenderableType:
    text = Text(plain(move.action), style="bold")
    text.append(
        "  accepted" if move.valid else "  refused: invalid move", style="green" if move.valid else "red"
    )
    if move.finish_reason == "length":
        text.append(f"  cut at {move.completion_tokens} tokens", style="yellow")
    elif move.completion_tokens is not None:
        text.append(f"  {move.completion_tokens} tokens", style="dim")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=6, style="bold dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("plays", text)
    return Padding(grid, (0, 0, 0, 1))


def _ending(transcript: Transcript) -> Iterator[RenderableType]:
    yield Rule(Text("end", style="bold"), align="left", style="")
    if transcript.state != "finished":
        words = f"{transcript.state}: {transcript.reason}" if transcript.reason else transcript.state
        yield Text(plain(words), style="yellow")
        yield Text("The moves of a game are recorded when it finishes.", style="dim")
        return
    ending = Text(transcript.winner or "nobody", style="bold")
    ending.append(" wins" if transcript.winner else " wins: " + str(transcript.reason))
    if transcript.winner and transcript.reason not in ("win", None):
        ending.append(f" ({transcript.reason})")
    if transcript.invalid_seat is not None:
        ending.append(f"; seat {transcript.invalid_seat} ended it with an invalid move", style="red")
    yield ending
    if transcript.reason_text:
        yield Text(plain(transcript.reason_text), style="dim")
    for line in transcript.seats:
        yield _result(line)


def _result(line: SeatLine) -> RenderableType:
    text = Text(f"seat {line.seat} {line.model_uid}", style=_colour(line.seat))
    reward = "no reward" if line.reward is None else f"reward {line.reward:+g}"
    text.append(f"  {line.result or 'unknown'}, {reward}", style="default")
    return text
