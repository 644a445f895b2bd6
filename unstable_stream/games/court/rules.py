"""Does a game take the moves that it offers and no others, answer the others, and end?"""

import math
import random
import re
from collections.abc import Iterator
from typing import Final

from unstable_stream.games.court.playing import NONSENSE, Play
from unstable_stream.games.court.results import MONEY
from unstable_stream.games.court.trial import Trial, answer
from unstable_stream.games.court.verdict import Finding, Status

_NONSENSE: Final = (NONSENSE, "qwertz", "")
_POSITIONS: Final = 60
_SOME: Final = 6
_REFUSED: Final = re.compile(r"\b(invalid|illegal|not allowed)\b", re.IGNORECASE)


def ends(trial: Trial) -> Iterator[Finding]:
    """Every game ends, within the number of turns that is declared."""
    declared = trial.declared.max_turns or math.inf
    for play in sorted(trial.plays, key=_valid_moves):
        if (count := _valid_moves(play)) > declared + trial.num_players:
            # What some call a turn is a round of all players.
            status: Status = "failed" if count > declared * trial.num_players else "warned"
            says = f"a game has {count} moves, and the environment declares at most {declared} turns"
            yield answer(status, says, play)
    if endless := [play for play in trial.plays if not play.ended and not play.failure]:
        many = f"{len(endless)} of {len(trial.plays)} games by random legal players"
        # Those who play by a plan may come to an end.
        says = f"{many} are not over after {len(endless[0].moments)} moves"
        yield answer("warned", says, endless[0], _SOME)
    counts = [len(play.moments) for play in trial.plays]
    mean = sum(counts) / len(counts)
    yield answer("passed", f"all games end, after {mean:.0f} moves on average and {max(counts)} at most")


def _valid_moves(play: Play) -> int:
    return sum(moment.valid for moment in play.moments)


def offered_moves(trial: Trial) -> Iterator[Finding]:
    """Every move that the text offers is taken."""
    tried = 0
    for play in trial.shortest:
        for number, moment in enumerate(play.moments):
            if not moment.valid and moment.action in moment.offered:
                yield _refused(trial, moment.action, moment.refusal, play, number + 1)
    for play, number in trial.within(0.1, _positions(trial)):
        game = trial.game_at(play, number)
        for move in play.moments[number].offered[:_POSITIONS]:
            tried += 1
            if game.accepts(move) and move != play.moves[number]:
                continue
            shown = trial.replay(play, (*play.moves[:number], move))
            last = shown.moments[-1] if len(shown.moments) > number else None
            if last is None or not last.valid:
                yield _refused(trial, move, shown.failure if last is None else last.refusal, shown)
    if tried:
        yield answer("passed", f"{tried} offered moves were taken")
    yield answer("not judged", "the text does not list the legal moves")


def _refused(trial: Trial, move: str, why: str, play: Play, moves: int | None = None) -> Finding:
    says = f"its text offers {move!r}, and it is refused: {why}"[:400]
    lists = {tuple(moment.offered) for each in trial.plays for moment in each.moments}
    if len(lists) == 1 and len(trial.plays) > 1:
        says += " (its list never changes: it names what moves there are)"
        return answer("warned", says, play, moves)
    return answer("failed", says, play, moves)


def other_moves(trial: Trial) -> Iterator[Finding]:
    """No move is taken that the text does not offer."""
    if not trial.lists_moves:
        yield answer("not judged", "the text does not list the legal moves")
        return
    every = {move for play in trial.plays for moment in play.moments for move in moment.offered}
    tried = 0
    for play, number in trial.within(0.1, _positions(trial)):
        offered = {move.casefold() for move in play.moments[number].offered}
        others = sorted(move for move in every if move.casefold() not in offered)
        game = trial.game_at(play, number)
        for move in random.Random(play.seed).sample(others, min(_SOME, len(others))):
            tried += 1
            if not game.accepts(move):
                continue
            shown = trial.replay(play, (*play.moves[:number], move))
            if len(shown.moments) > number and shown.moments[-1].valid:
                listed = ", ".join(sorted(play.moments[number].offered))[:100]
                says = f"it takes {move!r}, which its text does not offer there; it offers {listed}"
                yield answer("failed", says, shown)
    yield answer("passed", f"{tried} moves of other positions were refused where they are not offered")


def illegal_moves(trial: Trial) -> Iterator[Finding]:
    """An illegal move is answered, to the player who made it, and changes nothing."""
    answers: list[Finding] = []
    silent = tried = 0
    for play, number in trial.within(0.1, _positions(trial)[:_POSITIONS]):
        for nonsense in _NONSENSE[: 1 + (tried < _SOME)]:
            tried += 1
            shown = trial.play(play.seed, (*play.moves[:number], nonsense, *play.moves[number:]), allowance=1)
            silent += len(shown.moments) > number and shown.moments[number].valid
            answers += _answered(trial, play, number, shown)
    if answers:
        yield min(answers, key=lambda it: (it.status != "failed", len(it.example.moves) if it.example else 0))
    elif silent:
        says = f"{silent} of {tried} answers without a meaning were taken: it takes any text"
        yield answer("not judged", says)
    else:
        yield answer("passed", f"{tried} illegal moves were answered, to the player who made them")


def _answered(trial: Trial, play: Play, number: int, shown: Play) -> Iterator[Finding]:
    """Judge how an illegal move after ``number`` moves was answered."""
    if len(shown.moments) <= number:
        yield answer("failed", f"an illegal move ends it by an error: {shown.failure}", shown)
        return
    made, rest, moves = shown.moments[number], shown.moments[number + 1 :], number + 1
    seat, rewards = made.seat, shown.rewards
    if made.valid:
        loses = not rest and rewards is not None and rewards[seat] < max(rewards.values())
        told = any(_REFUSED.search(moment.text) for moment in rest[:1])
        if trial.lists_moves and not (loses or told):
            says = f"{made.action!r} is no legal move, and it is taken without a word"
            yield answer("failed", says, shown, moves)
    elif not rest and shown.failure:
        yield answer("failed", f"after an illegal move it fails: {shown.failure}", shown, moves)
    elif not rest:
        if shown.invalid_seats and seat not in shown.invalid_seats:
            others = ", ".join(map(str, sorted(shown.invalid_seats)))
            says = f"seat {seat} makes an illegal move, and seat {others} is blamed for it"
            yield answer("failed", says, shown, moves)
        if rewards and len(rewards) > 1 and rewards[seat] >= max(rewards.values()):
            says = f"the illegal move of seat {seat} ends the game, and it does not lose by it: {rewards}"
            yield answer("failed", says, shown, moves)
        if not shown.invalid_seats:
            says = f"an illegal move of seat {seat} ends the game, and close() does not say so"
            yield answer("warned", says, shown, moves)
    elif rest[0].seat != seat:
        told = bool(made.refusal) and made.refusal in rest[0].text
        says = f"seat {seat} makes an illegal move, and seat {rest[0].seat} is asked next"
        says += ", and told the reason" if told else ""
        yield answer("failed" if told else "warned", says, shown, moves)
    elif rest[0].text == made.text and not made.refusal:
        says = f"seat {seat} is not told that its move was illegal, and no reason is given"
        yield answer("failed", says, shown, moves)
    elif not rest[0].valid and play.moments[number].valid:
        says = (
            f"after an illegal move {rest[0].action!r} is refused, which was legal before: {rest[0].refusal}"
        )
        yield answer("failed", says, shown, moves)
    elif (trial.repeatable and play.legal and shown.moves[moves:] == play.moves[number:]) and not (
        rewards == play.rewards and all(moment.valid for moment in rest)
    ):
        says = f"an illegal move changes the game: it ends in {rewards} instead of {play.rewards}"
        yield answer("warned", says, shown, moves)
    elif gone := [line for line in made.text.splitlines() if MONEY.search(line) and line not in rest[0].text]:
        says = f"an illegal move changes what is played for: it was {gone[0]!r:.100}"
        yield answer("warned", says, shown, moves)


def _positions(trial: Trial) -> list[tuple[Play, int]]:
    """Return some positions: of short games first, and early ones first."""
    plays = trial.shortest
    longest = max((len(play.moments) for play in plays), default=0)
    found = [
        (play, number) for number in range(min(longest, 4)) for play in plays if number < len(play.moments)
    ]
    rest = [(play, number) for play in plays for number in range(4, len(play.moments))]
    return found[:_POSITIONS] + rest[:: max(1, len(rest) // _POSITIONS)]
