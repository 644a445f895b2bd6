"""A game's transcript on a terminal. All text of games and models is shown literally, markup included."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from unstable_stream.console import plain
from unstable_stream.history.views.transcript import SeatLine, Transcript, TranscriptMove

_SEAT_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def render(
    transcript: Transcript, *, texts: Mapping[int, Sequence[str]] | None = None, prompts: bool = False
) -> RenderableType:
    """Return the whole transcript, ready to print.

    Args:
        transcript: the game.
        texts: show each token with its log-probability; what the tokens of a game turn say, where known.
        prompts: show the prompts too.
    """
    return Group(*_header(transcript), *_moves(transcript, texts, prompts), *_ending(transcript))


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


def _moves(
    transcript: Transcript, texts: Mapping[int, Sequence[str]] | None, prompts: bool
) -> Iterator[RenderableType]:
    names = {line.seat: line.model_uid for line in transcript.seats}
    for move in transcript.moves:
        colour = _colour(move.seat)
        title = Text(f"move {move.game_turn} · seat {move.seat} · {names.get(move.seat, '?')}", style=colour)
        yield Rule(title, align="left", style=colour)
        if move.observation is not None:
            yield _block("sees", Text(plain(move.observation.strip("\n")), style="dim"))
        if prompts and move.prompt is not None:
            yield _block("prompt", Text(plain(move.prompt.strip("\n")), style="dim"))
        if move.completion is not None:
            yield _block("writes", Text(plain(move.completion.strip("\n"))))
        if texts is not None and move.token_ids:
            yield _block("tokens", _tokens(move, texts.get(move.game_turn)))
        yield _action(move)
        if move.step_id is not None:
            yield _block("reward", _rewards(move))


def _block(label: str, text: Text) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=6, style="bold dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(label, text)
    return Padding(grid, (0, 0, 0, 1))


def _tokens(move: TranscriptMove, texts: Sequence[str] | None) -> Text:
    """Return each token with its log-probability in nats, the surprising ones brighter."""
    known = texts or [f"#{token}" for token in move.token_ids]
    shown = Text()
    for text, logprob in zip(known, move.logprobs, strict=True):
        style = "bold red" if logprob < -3 else "yellow" if logprob < -1 else "green"
        shown.append(plain(text.replace("\n", "⏎")).strip() or "␣", style=style)
        shown.append(f" {logprob:.2f}  ", style="dim")
    return shown


def _rewards(move: TranscriptMove) -> Text:
    stages = (("game", move.raw_reward), ("final", move.final_reward), ("step", move.step_reward))
    text = Text("  ".join(f"{name} {value:+.4g}" for name, value in stages if value is not None))
    if move.fate == "pending":
        text.append("  not trained on yet", style="dim")
    elif move.fate == "dropped":
        text.append(f"  dropped at update {move.update}: {move.drop_reason}", style="yellow")
    else:
        text.append(f"  trained on in update {move.update}", style="dim")
    return text


def _action(move: TranscriptMove) -> RenderableType:
    text = Text(plain(move.action), style="bold")
    text.append(
        "  accepted" if move.valid else "  refused: invalid move", style="green" if move.valid else "red"
    )
    if move.finish_reason == "length":
        text.append(f"  cut at {move.completion_tokens} tokens", style="yellow")
    elif move.completion_tokens is not None:
        text.append(f"  {move.completion_tokens} tokens", style="dim")
    return _block("plays", text)


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
