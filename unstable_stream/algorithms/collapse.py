"""Notice a collapse: count what the games of each update show, and watch the numbers of the updates.

:class:`GameTally` counts games into metrics of the next learner update. :class:`CollapseWatch` is a fold of
the updates' metrics: the same updates give the same warnings, live, after a restart, and of any recorded run.

Each rule looks at one number, update by update. It is *sick* beyond its bound, and *uneasy* from half the
way. A rule warns when its number was sick in three observations in a row (results and divergence, which come
less often: in two), so that one noisy update warns of nothing. What an update observes, a policy did that the
update before had made at the latest: the collapse began with the update before the oldest observation that
the first uneasy number was made of. A rule warns again only after ten observations in a row that were not
sick.

``unplayable``
    At least 95 % of an update's games, and of at least sixteen, ended by an invalid move of the policy. It
    warns at once: a template or a model that cannot play shows so from the first update, and has no better
    past to fall from.
``certain``
    The entropy is below 0.03 nats and below a tenth of its highest value so far, while at least one in ten
    games against fixed opponents is lost, or none is known. A policy that is certain explores nothing, and
    neither rewards nor an entropy bonus move it any more. The second bound is there because much of an
    answer (its end, its brackets) is certain in a healthy policy too.
``unparsed``, ``illegal``
    The share of answers that parse has fallen by 0.05 from its best, or that of legal moves by 0.1. Shares
    are of the last three updates together, and the 99.9 % Wilson intervals of now and the best do not
    overlap.
``result``
    The win rate against a fixed opponent, over at least the last 100 games, has fallen to half of its best,
    and the 99.9 % Wilson intervals do not overlap. Results in mirror self-play cannot show this: when both
    seats get worse, they still win half of the games.
``ignoring``
    The mutual information of position and answer is below a tenth of its best mean of three measurements, and
    that was at least 0.3 nats: the policy answers alike whatever it is shown. Its entropy may be what it was.
``divergence``
    The divergence from the base model is above 1 nat per token, and above four times the median of its last
    eight measurements.
"""

import math
import statistics
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

from unstable_stream.algorithms.intervals import wilson_interval
from unstable_stream.events import CollapseWarning, GameOutcome, SeatResult, are_partners, trained_model

PATIENCE: Final = 3
RARE_PATIENCE: Final = 2
RECOVERY: Final = 10
ENTROPY_FLOOR: Final = 0.03
ENTROPY_SHARE: Final = 0.1
LOSS_RATE: Final = 0.1
PARSED_FALL: Final = 0.05
LEGAL_FALL: Final = 0.1
SHARE_UPDATES: Final = 3
RESULT_GAMES: Final = 100
RESULT_SHARE: Final = 0.5
"""A policy that changes its play loses to a simple opponent for a while, and finds back: a quickstart fell
from 0.96 to 0.53 against the first legal move, for five updates.
"""
LOSS_GAMES: Final = 100
INFORMATION_FLOOR: Final = 0.3
INFORMATION_SHARE: Final = 0.1
DIVERGENCE_FLOOR: Final = 1.0
DIVERGENCE_JUMP: Final = 4.0
DIVERGENCE_MEMORY: Final = 8
Z: Final = 3.290526731491896
"""The standard normal quantile of 99.9 % on both sides. It is so high because every update tests once more
against the best of all: at 99 %, one in fifteen steady runs of 120 updates warned; at 99.9 %, none of 150."""

INVALID_SHARE: Final = 0.95
INVALID_GAMES: Final = 16


@dataclass(frozen=True, slots=True)
class Sign:
    """A rule has seen a collapse."""

    update: int
    """The update at which it was seen."""
    began: int
    """The first update that may have caused it."""
    rule: str
    """Its name, as above."""
    signal: str
    """The metric that the rule looked at."""
    value: float
    """The number that was seen."""
    reference: float
    """The number that it was compared with: a bound, or the best so far."""
    text: str
    """One sentence about it."""


@dataclass(frozen=True, slots=True)
class _Finding:
    """One observation of a rule."""

    since: int
    """The first update that the value is made of."""
    uneasy: bool
    sick: bool
    value: float
    reference: float


@dataclass(slots=True)
class _Alarm:
    """Patience and recovery of one rule."""

    patience: int
    began: int = 0
    uneasy: bool = False
    sick: int = 0
    well: int = RECOVERY
    """Observations in a row that were not sick, since it last warned."""

    def observe(self, finding: _Finding) -> bool:
        """Return whether the rule warns now."""
        if finding.uneasy and not self.uneasy:
            self.began = max(1, finding.since - 1)
        self.uneasy = finding.uneasy
        if not finding.sick:
            self.sick = 0
            self.well += 1
            return False
        self.sick += 1
        recovered = self.well >= RECOVERY
        if not recovered or self.sick == self.patience:
            self.well = 0
        return recovered and self.sick == self.patience


@dataclass
class _Unplayable:
    name: str = "unplayable"
    signal: str = "invalid_game_fraction"

    def observe(self, update: int, metrics: Mapping[str, float]) -> _Finding | None:
        share = metrics.get(self.signal)
        if share is None or metrics.get("finished_games", 0.0) < INVALID_GAMES:
            return None
        sick = share >= INVALID_SHARE
        return _Finding(update, sick, sick, share, INVALID_SHARE)

    def text(self, finding: _Finding) -> str:
        return f"{finding.value:.0%} of the games ended by an invalid or unreadable answer of the policy"


@dataclass
class _Certain:
    name: str = "certain"
    signal: str = "entropy"
    _highest: float = 0.0
    _games: deque[tuple[float, float]] = field(default_factory=deque)
    """Games and losses of each update, as many as make :data:`LOSS_GAMES`."""

    def observe(self, update: int, metrics: Mapping[str, float]) -> _Finding | None:
        games = metrics.get("fixed_games", 0.0)
        if games:
            self._games.append((games, games * metrics.get("fixed_loss_rate", 0.0)))
            while sum(games for games, _ in self._games) - self._games[0][0] >= LOSS_GAMES:
                self._games.popleft()
        entropy = metrics.get("entropy")
        if entropy is None:
            return None
        self._highest = max(self._highest, entropy)
        bound = min(ENTROPY_FLOOR, ENTROPY_SHARE * self._highest)
        played = sum(games for games, _ in self._games)
        loses = not played or sum(lost for _, lost in self._games) >= LOSS_RATE * played
        return _Finding(update, loses and entropy < 2 * bound, loses and entropy < bound, entropy, bound)

    def text(self, finding: _Finding) -> str:
        return f"the entropy is {finding.value:.3g} nats, below {finding.reference:.3g}, while games are lost"


@dataclass
class _Ignoring:
    name: str = "ignoring"
    signal: str = "answer_information"
    _window: deque[float] = field(default_factory=lambda: deque(maxlen=SHARE_UPDATES))
    _best: float = 0.0

    def observe(self, update: int, metrics: Mapping[str, float]) -> _Finding | None:
        value = metrics.get(self.signal)
        if value is None:
            return None
        self._window.append(value)
        if len(self._window) == SHARE_UPDATES:
            self._best = max(self._best, statistics.fmean(self._window))
        bound = INFORMATION_SHARE * self._best if self._best >= INFORMATION_FLOOR else -math.inf
        return _Finding(update, value < 2 * bound, value < bound, value, self._best)

    def text(self, finding: _Finding) -> str:
        return (
            f"answers tell {finding.value:.2g} nats of their positions, down from {finding.reference:.2g}: "
            "the policy answers alike whatever it is shown"
        )


@dataclass
class _Share:
    name: str
    signal: str
    what: str
    fall: float
    _window: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=SHARE_UPDATES))
    """Update, count and turns."""
    _best: tuple[int, int] = (0, 0)

    def observe(self, update: int, metrics: Mapping[str, float]) -> _Finding | None:
        turns, share = round(metrics.get("game_turns", 0.0)), metrics.get(self.signal)
        if not turns or share is None:
            return None
        self._window.append((update, round(share * turns), turns))
        if len(self._window) < SHARE_UPDATES:
            return None
        _, count, total = (sum(column) for column in zip(*self._window, strict=True))
        if not self._best[1] or count / total > self._best[0] / self._best[1]:
            self._best = (count, total)
        best, now = self._best[0] / self._best[1], count / total
        apart = wilson_interval(count, total, Z)[1] < wilson_interval(*self._best, Z)[0]
        fallen = best - now
        since = self._window[0][0]
        return _Finding(since, fallen > self.fall / 2, apart and fallen > self.fall, now, best)

    def text(self, finding: _Finding) -> str:
        return f"{finding.value:.0%} of the answers {self.what}, down from {finding.reference:.0%}"


@dataclass
class _Result:
    opponent: str
    """``ENVIRONMENT/OPPONENT``."""
    name: str = "result"
    _window: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Update, wins and games, as many as make :data:`RESULT_GAMES`."""
    _best: tuple[int, int] = (0, 0)

    @property
    def signal(self) -> str:
        return f"fixed_wins/{self.opponent}"

    def observe(self, update: int, metrics: Mapping[str, float]) -> _Finding | None:
        games = round(metrics.get(f"fixed_games/{self.opponent}", 0.0))
        if not games:
            return None
        self._window.append((update, round(metrics.get(self.signal, 0.0)), games))
        while sum(games for *_, games in self._window) - self._window[0][2] >= RESULT_GAMES:
            self._window.popleft()
        _, wins, total = (sum(column) for column in zip(*self._window, strict=True))
        if total < RESULT_GAMES:
            return None
        if not self._best[1] or wins / total > self._best[0] / self._best[1]:
            self._best = (wins, total)
        low = wilson_interval(*self._best, Z)[0]
        apart = wilson_interval(wins, total, Z)[1] < low
        now, best = wins / total, self._best[0] / self._best[1]
        sick = apart and now <= RESULT_SHARE * best
        return _Finding(self._window[0][0], now < low, sick, now, best)

    def text(self, finding: _Finding) -> str:
        environment, _, opponent = self.opponent.rpartition("/")
        return (
            f"{finding.value:.0%} of the games against {opponent} in {environment} are won, "
            f"down from {finding.reference:.0%}"
        )


@dataclass
class _Divergence:
    name: str = "divergence"
    signal: str = "kl_to_base"
    _before: deque[float] = field(default_factory=lambda: deque(maxlen=DIVERGENCE_MEMORY))

    def observe(self, update: int, metrics: Mapping[str, float]) -> _Finding | None:
        value = metrics.get(self.signal)
        if value is None:
            return None
        median = statistics.median(self._before) if len(self._before) == DIVERGENCE_MEMORY else value
        sick = value > max(DIVERGENCE_FLOOR, DIVERGENCE_JUMP * median)
        if not sick:  # what jumped must not raise the level that it is compared with
            self._before.append(value)
        return _Finding(update, sick, sick, value, median)

    def text(self, finding: _Finding) -> str:
        return (
            f"the divergence from the base model is {finding.value:.3g} nats per token, "
            f"up from {finding.reference:.3g}"
        )


_Rule: TypeAlias = _Unplayable | _Certain | _Ignoring | _Share | _Result | _Divergence


class CollapseWatch:
    """Fold the metrics of a run's updates, in order; each may show signs of a collapse."""

    def __init__(self) -> None:
        self._rules: dict[str, _Rule] = {}
        self._alarms: dict[str, _Alarm] = {}
        for rule in (
            _Unplayable(),
            _Certain(),
            _Ignoring(),
            _Share("unparsed", "parsed_fraction", "parse", PARSED_FALL),
            _Share("illegal", "legal_fraction", "are legal moves", LEGAL_FALL),
            _Divergence(),
        ):
            self._add(rule)

    def _add(self, rule: _Rule) -> None:
        self._rules[rule.signal] = rule
        rare = isinstance(rule, _Result | _Divergence)
        patience = 1 if isinstance(rule, _Unplayable) else RARE_PATIENCE if rare else PATIENCE
        self._alarms[rule.signal] = _Alarm(patience)

    def apply(self, update: int, metrics: Mapping[str, float]) -> list[Sign]:
        """Fold one update; return the signs that it completes."""
        for name in metrics:
            if name.startswith("fixed_wins/") and name not in self._rules:
                self._add(_Result(name.removeprefix("fixed_wins/")))
        signs = []
        for signal, rule in self._rules.items():
            finding = rule.observe(update, metrics)
            if finding is not None and self._alarms[signal].observe(finding):
                began, value, reference = self._alarms[signal].began, finding.value, finding.reference
                signs.append(Sign(update, began, rule.name, signal, value, reference, rule.text(finding)))
        return signs

    def state(self) -> dict[str, Any]:
        """Return what it has learned as JSON-able values; :meth:`restore` takes them."""
        return {
            signal: {"rule": _fields(rule), "alarm": _fields(self._alarms[signal])}
            for signal, rule in self._rules.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the watch that :meth:`state` described."""
        for signal, saved in state.items():
            if signal not in self._rules:
                self._add(_Result(signal.removeprefix("fixed_wins/")))
            _set_fields(self._rules[signal], saved["rule"])
            _set_fields(self._alarms[signal], saved["alarm"])


def _fields(thing: Any) -> dict[str, Any]:
    values = {each.name: getattr(thing, each.name) for each in fields(thing)}
    return {name: list(value) if isinstance(value, deque) else value for name, value in values.items()}


def _set_fields(thing: Any, saved: Mapping[str, Any]) -> None:
    for name, value in saved.items():
        now = getattr(thing, name)
        if isinstance(now, deque):
            now.clear()
            now.extend(tuple(item) if isinstance(item, list) else item for item in value)
        else:
            setattr(thing, name, tuple(value) if isinstance(now, tuple) else value)


def advice(warning: CollapseWarning, learning_rate: float, options: str = "") -> str:
    """Return a warning in one sentence, and the command that forks the run before it.

    Args:
        warning: of the run.
        learning_rate: the run's peak learning rate; half of it is proposed.
        options: those that lead a command to the run's log and data directory, each after a space.
    """
    if warning.rule == "unplayable" and warning.fork_at == 0:
        return (
            f"update {warning.update} learns from nothing that was played well: {warning.text}. Read some "
            f"(unstable-stream games{options}), then change the template, sampling.max_tokens or the model"
        )
    return (
        f"sign of a collapse at update {warning.update}, since update {warning.began}: {warning.text}. "
        f"Go back before it: unstable-stream fork {warning.run_id} --at {warning.fork_at} "
        f"--set learner.learning_rate={learning_rate / 2:g}{options}"
    )


class GameTally:
    """The games that ended since the last update: answers, mirror self-play, fixed opponents.

    Counted are the seats of the policy: those that are trained, and the one under evaluation. Older
    checkpoints as opponents are not counted, and games against them say nothing of a fixed opponent.
    ``model`` is the name of one of several trained models: the others are opponents like older checkpoints,
    unless they win and lose with it.
    """

    def __init__(self, model: str | None = None) -> None:
        self._model = model
        self._begin()

    def _begin(self) -> None:
        self._games = self._invalid = 0
        self._turns = self._legal = 0
        self._judged = self._parsed = 0
        self._mirror_games = 0
        self._mirror_reward = 0.0
        self._fixed: Counter[tuple[str, str]] = Counter()
        self._won: Counter[tuple[str, str]] = Counter()
        self._lost: Counter[tuple[str, str]] = Counter()

    def add(self, game: GameOutcome) -> None:
        """Count one game of the run, train or eval."""
        own = [
            seat
            for seat in game.seats
            if (seat.trained or seat.model_uid == game.evaluated_uid)
            and trained_model(seat.model_uid) == self._model
        ]
        others = [seat for seat in game.seats if not any(are_partners(seat, mine) for mine in own)]
        self._games += bool(own)
        self._invalid += any(seat.seat == game.invalid_seat for seat in own)
        for seat in own:
            self._turns += seat.turns
            self._legal += seat.turns - seat.invalid_moves
            if seat.seat in game.unparsed:
                self._judged += seat.turns
                self._parsed += seat.turns - game.unparsed[seat.seat]
        if game.position is not None:
            return  # its result says more of the position than of the policy
        if len(own) == len(game.seats) > 1:
            self._mirror_games += 1
            self._mirror_reward += sum(seat.reward for seat in own) / len(own)
        elif own and others and all(seat.kind != "checkpoint" for seat in others):
            self._add_fixed(game.env_id, own, others)

    def _add_fixed(self, env_id: str, own: list[SeatResult], others: list[SeatResult]) -> None:
        key = (env_id, "+".join(sorted({seat.model_uid for seat in others})))
        best, best_other = max(seat.reward for seat in own), max(seat.reward for seat in others)
        self._fixed[key] += 1
        self._won[key] += best > best_other
        self._lost[key] += best < best_other

    def take(self) -> dict[str, float]:
        """Return the metrics of the games counted, and begin anew; what was not counted has no metric."""
        metrics: dict[str, float] = {}
        if self._games:
            metrics["finished_games"] = float(self._games)
            metrics["invalid_game_fraction"] = self._invalid / self._games
        if self._turns:
            metrics["game_turns"] = float(self._turns)
            metrics["legal_fraction"] = self._legal / self._turns
        if self._judged:
            metrics["parsed_fraction"] = self._parsed / self._judged
        if self._mirror_games:
            metrics["mirror_games"] = float(self._mirror_games)
            metrics["mirror_reward"] = self._mirror_reward / self._mirror_games
        if games := self._fixed.total():
            metrics["fixed_games"] = float(games)
            metrics["fixed_win_rate"] = self._won.total() / games
            metrics["fixed_loss_rate"] = self._lost.total() / games
        for (env_id, opponent), count in sorted(self._fixed.items()):
            metrics[f"fixed_games/{env_id}/{opponent}"] = float(count)
            metrics[f"fixed_wins/{env_id}/{opponent}"] = float(self._won[env_id, opponent])
        self._begin()
        return metrics
