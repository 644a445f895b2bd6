"""Look at the texts: do they show what another seat holds, the seed, marks of a chat template, too much?"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import Any, Final

from unstable_stream.games.court.playing import NONSENSE, Moment, Play, apart
from unstable_stream.games.court.trial import Reader, Trial, answer
from unstable_stream.games.court.verdict import Finding

_DEALS: Final = 60
_FEWEST: Final = 12
_CHOICES: Final = 6
_BY_CHANCE: Final = 1e-5
_SEGMENTS: Final = re.compile(r"[\n;|]|\.\s")
_PUBLIC: Final = 0.7
_MOST_LEAVES: Final = 200
_DEEPEST: Final = 4
_LONG_TEXT: Final = 16_000
"""Characters; a model with a context of 4,096 tokens cannot read more."""
_MARKS: Final = re.compile(
    r"<[|｜][^|｜<>\n]{1,40}[|｜]>|</?s>|\[/?INST\]|</?think>|<(?:start|end)_of_turn>|<bos>|<eos>|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
_NAMED: Final = re.compile(r"\byou are player (\d+)\b", re.IGNORECASE)
_SLOW_MOVES: Final = 20.0


def hidden(trial: Trial) -> Iterator[Finding]:
    """No seat is shown what another one holds.

    Where a text is worded when asked for, what another seat is shown is changed: the text must stay as it is,
    or it fails. Where it is not, what one seat alone is told is looked for in the texts of the others, and
    found there it is a warning, for the rules may want it.
    """
    if trial.num_players == 1 or trial.declared.perfect_information:
        why = "it has one seat" if trial.num_players == 1 else "it declares that all see all"
        yield answer("not judged", why)
    elif hasattr(trial.core, "_position"):
        yield from _by_information_state(trial)
    else:
        # Also the answer to an illegal move may show too much.
        openings: tuple[tuple[str, ...], ...] = ((), (NONSENSE,))
        deals = [[_deals(trial, opening, choices) for choices in range(_CHOICES)] for opening in openings]
        for turns, *_ in deals:
            for one in range(len(turns) - 1):
                for here, there in ((one, one + 1), (one + 1, one)):
                    yield from _altered(trial, turns[one + 1], here, there)
        for played in deals:
            found, *others = map(_repeated, played)
            for key, (finding, values) in found.items():
                told = [other[key][1] for other in others if key in other]
                if len(told) == len(others) and all(
                    value == values.get(seed, value) for other in told for seed, value in other.items()
                ):
                    yield finding
        yield answer("passed", "what differs between deals is shown to its own seat alone")


def _by_information_state(trial: Trial) -> Iterator[Finding]:
    """OpenSpiel says what a player knows: where it is the same, and the moves are, so must the text be."""
    from unstable_stream.games.openspiel.wording import information_state

    known: dict[tuple[int, str, tuple[str, ...]], str] = {}
    for play in trial.within(0.08, trial.plays):
        game = trial.game(play.seed, play.moves)
        for number, moment in enumerate(play.moments):
            key = moment.seat, information_state(game.env.core._position), tuple(moment.offered)
            if known.setdefault(key, moment.text) != moment.text:
                says = f"seat {moment.seat} knows {key[1]!r:.80} in two games, and is shown another text"
                yield answer("failed", says, play, number)
            game.advance()
    yield answer("passed", f"the texts are functions of what a player may know, in {len(known)} states")


def _deals(trial: Trial, opening: Sequence[str], choices: int) -> list[list[Play]]:
    """Begin many games, of which the players choose alike.

    Returns for each turn the most of them of which the moves before, and who made them, are the same.
    """
    groups: dict[int, dict[Any, list[Play]]] = defaultdict(lambda: defaultdict(list))
    how = {"choices": choices, "most": 2 * trial.num_players + len(opening), "allowance": len(opening)}
    for number in trial.within(0.02, range(2 * _FEWEST if choices else _DEALS), least=2 * _FEWEST):
        play = trial.play(trial.game_seed(number, "deal"), opening, **how)
        for turn in range(len(play.moments)):
            seats = tuple(moment.seat for moment in play.moments[: turn + 1])
            groups[turn][play.moves[:turn], seats].append(play)
    return [max(alike.values(), key=len) for _, alike in sorted(groups.items())]


def _repeated(
    turns: Sequence[Sequence[Play]],
) -> dict[tuple[int, int, str], tuple[Finding, dict[int, str]]]:
    """Look in a seat's text for what another seat alone is told later, in all deals; with it, by seed.

    It is a leak only if it is the same whatever is played: a card that is played is known to all from then
    on. So is what was told before, which is not looked at.
    """
    found: dict[tuple[int, int, str], tuple[Finding, dict[int, str]]] = {}
    for here, there in combinations(range(len(turns)), 2):
        group = turns[there]
        asked, other = group[0].moments[here].seat, group[0].moments[there].seat
        if len(group) < _FEWEST or asked == other:
            continue
        texts = [play.moments[here].text for play in group]
        for label, values in _parts([play.moments[there].text for play in group]).items():
            both = sum(f"{label}{value}" in text for text, value in zip(texts, values, strict=True))
            if both <= _PUBLIC * len(group) and _holds_all(texts, values):
                says = (
                    f"seat {asked} is shown {values[0][:60]!r} before seat {other} is told "
                    f"{f'{label}{values[0]}'.strip()[-100:]!r}, and so in {len(group)} deals; if all may see "
                    "it, declare perfect_information = True"
                )
                by_seed = {play.seed: value for value, play in zip(values, group, strict=True)}
                found.setdefault((asked, other, label), (answer("warned", says, group[0], here), by_seed))
    return found


def _parts(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the parts of texts that differ from one to the other, by the words before them."""
    split = [[part for part in _SEGMENTS.split(text) if part.strip()] for text in texts]
    usual = Counter(map(len, split)).most_common(1)[0][0]
    found: dict[str, list[str]] = {}
    for column in range(usual):
        values = [parts[column] if len(parts) == usual else "" for parts in split]
        given = [value for value in values if value]
        if len(set(given)) > 2:  # two may follow from each other, as roles do
            least, most = min(given), max(given)
            same = next((n for n, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))
            label = re.sub(r"\w+$", "", least[:same])
            found[label] = [value[len(label) :].strip(" .'\"") for value in values]
    return found


def _holds_all(texts: Sequence[str], values: Sequence[str]) -> bool:
    """Tell whether each value is in its text, and would not be by chance."""
    pairs = [(text, value) for text, value in zip(texts, values, strict=True) if value]
    if len(pairs) < _FEWEST or not all(_holds(text, value) for text, value in pairs):
        return False
    others = [_holds(text, value) for text, _ in pairs for _, value in pairs[:_FEWEST]]
    return (sum(others) / len(others)) ** len(pairs) < _BY_CHANCE


def _holds(text: str, value: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _altered(trial: Trial, group: Sequence[Play], here: int, there: int) -> Iterator[Finding]:
    """Change what another seat is shown to what it is in another deal: the text here must stay the same.

    It finds also what a text says in part or in other words, such as which of two cards is higher.
    """
    if group[0].moments[here].seat == group[0].moments[there].seat:
        return
    for play, other in islice(zip(group, group[::-1], strict=True), _FEWEST):
        text, theirs = play.moments[here].text, play.moments[there].text
        own = [line for line in theirs.splitlines() if line not in text]
        then, deal = (dict(_leaves(trial.game_at(*at).env.core)) for at in ((play, there), (other, here)))
        for path, value in islice(_leaves(trial.game_at(play, here).env.core), _MOST_LEAVES):
            held = [line for line in own if _holds(line, str(value))]
            new = deal.get(path, value)
            if not held or then.get(path) != value or new == value or type(new) is not type(value):
                continue
            told, altered = (_reworded(trial, play, turn, path, new) for turn in (there, here))
            if told and altered and altered != text and any(line not in told for line in held):
                seat, holds = (play.moments[turn].seat for turn in (here, there))
                says = (
                    f"the text of seat {seat} changes with {'.'.join(map(str, path))}, of which seat {holds} "
                )
                says += (
                    f"has a line of its own, from {value} to {new}: it {apart(text, altered)}; if all may "
                )
                says += "see it, declare perfect_information = True"
                yield answer("failed", says, play, here)


def _reworded(trial: Trial, play: Play, turn: int, path: tuple[Any, ...], value: Any) -> str | None:
    """Return the text of a turn with something else in the state; ``None``: it is not worded when asked."""
    game = trial.game_at(play, turn)
    try:
        if game.env.look() != play.moments[turn].text:
            return None
        _set(game.env.core, path, value)
        return game.env.look()
    except Exception:  # noqa: BLE001  (a state that no game has may break anything)
        return None


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the numbers and words of a state that can be replaced, with their paths."""
    inner: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    if not path or hasattr(value, "game_state"):
        inner = getattr(value, "__dict__", {}).items()
    for key, each in inner:
        if isinstance(each, int | str) and not isinstance(each, bool):
            yield (*path, key), each
        elif len(path) < _DEEPEST:
            yield from _leaves(each, (*path, key))


def _set(core: Any, path: tuple[Any, ...], value: Any) -> None:
    *outer, last = path
    for key in outer:
        core = core[key] if isinstance(core, dict | list) else getattr(core, key)
    if isinstance(core, dict | list):
        core[last] = value
    else:
        setattr(core, last, value)


def seed_shown(trial: Trial) -> Iterator[Finding]:
    """No text shows the seed."""
    for play in trial.plays:
        for number, moment in enumerate(play.moments):
            if any(
                form in moment.text.lower() for form in (f"{play.seed}", f"{play.seed:x}", f"{play.seed:,}")
            ):
                yield answer("failed", f"seat {moment.seat} is shown the seed of the game", play, number)
    yield answer("passed", "no text shows the seed")


def texts(trial: Trial) -> Iterator[Finding]:
    """Every text has something to say, is not too long, and has no marks of a chat template."""
    moments = [(moment, play, number) for play in trial.plays for number, moment in enumerate(play.moments)]
    names = {(moment.seat, int(said[1])) for moment, _, _ in moments if (said := _NAMED.search(moment.text))}
    first = min((seat for _, seat in names), default=0)
    doubts: list[Finding] = []  # the first finding counts, and what fails counts for more
    for moment, play, number in moments:
        said = _NAMED.search(moment.text)
        if said and int(said[1]) != moment.seat + first and len(names) == len({seat for seat, _ in names}):
            yield answer("failed", f"seat {moment.seat} is told {said[0]!r}", play, number)
        if not moment.text.strip():
            yield answer("failed", f"seat {moment.seat} is shown nothing at turn {number}", play, number)
        if found := _MARKS.search(moment.text):
            says = f"its text holds {found[0]!r}, which a tokenizer may take for a mark of its own"
            doubts.append(answer("warned", says, play, number))
    if not moments:
        return
    longest, play, number = max(moments, key=lambda shown: len(shown[0].text))
    size = len(longest.text)
    says = f"the longest text has {size:,} characters"
    if trial.reader is None:
        says += f", about {size // 4:,} tokens by an estimate of four characters for each"
        yield from doubts
        yield answer("warned", says, play, number) if size > _LONG_TEXT else answer("passed", says)
    else:
        yield from _read(trial.reader, moments, says, doubts)


def _read(
    reader: Reader, moments: Sequence[tuple[Moment, Play, int]], says: str, doubts: list[Finding]
) -> Iterator[Finding]:
    """Read texts as a model does: the prompt that a template makes of each, in tokens."""
    most = 0
    for moment, play, number in moments:
        if reader.spells_control(moment.text):
            doubts.append(answer("warned", f"its text spells control tokens of {reader.name}", play, number))
        try:
            tokens = reader.tokens(reader.prompt(moment.text))
        except Exception as error:  # noqa: BLE001  (a template of a user's own may raise anything)
            yield answer("failed", f"{reader.name} cannot read a text: {error}"[:300], play, number)
            return
        if reader.context and tokens > reader.context:
            long = f"a prompt for {reader.name} has {tokens:,} tokens, and the model reads {reader.context:,}"
            doubts.append(answer("warned", long, play, number))
        most = max(most, tokens)
    yield from doubts
    yield answer("passed", f"{says}, and the longest prompt for {reader.name} {most:,} tokens")


def speed(trial: Trial) -> Iterator[Finding]:
    """A move takes less time than a model needs to answer."""
    begin = trial.clock()
    if moves := sum(len(trial.replay(play).moments) for play in trial.within(0.02, trial.shortest)):
        pace = moves / max(trial.clock() - begin, 1e-9)
        yield answer(
            "warned" if pace < _SLOW_MOVES else "passed", f"{pace:,.0f} moves a second, reset included"
        )
