"""Find the update that broke a run: win rates in the same games, SQL or a command tell good from bad."""

import json
import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeAlias, Unpack

import msgspec

from unstable_stream.api.checkpoints import split_name
from unstable_stream.api.evaluation import EvaluationOptions, evaluation
from unstable_stream.api.place import placed
from unstable_stream.api.run import Run, open_run
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events.seeds import eval_game_seed
from unstable_stream.games.disguises.naming import plain_id
from unstable_stream.history.hindsight.bisect import (
    NEIGHBOURS,
    Ends,
    Game,
    PairedGames,
    Unusual,
    block_sizes,
    decisions,
    find_fall,
    find_unusual,
)
from unstable_stream.log.stores.checkpoint_files import OPTIMIZER_FILE, has_file
from unstable_stream.runs.resume import value_at

_Report: TypeAlias = Callable[[str], object]
_Reader: TypeAlias = Callable[[int], float | None]
"""Returns the number of an update; ``None``: it has none."""
_AGAINST: Final = "win rate against "
_ALPHA: Final = 0.05
_MOST_GAMES: Final = 400
_FIRST_GAMES: Final = 50
_FEWEST_GAMES: Final = 20
"""The run's own evaluation games are the first that are compared, if there are so many."""
_CANNOT_JUDGE: Final = 125
_SHOWN: Final = 5
_LARGEST: Final = sys.float_info.max
_SAME: Final = ("sampling", "evaluation.votes", "evaluation.best_of", "collector.max_turns")
"""Keys that decide how a checkpoint plays: recorded games count where they are the same."""
_COMPARED: Final = (
    *("learning_rate", "grad_norm", "reward_mean", "completion_length", "entropy", "staleness_mean"),
    *("is_ratio_mean", "is_ratio_max", "approx_kl"),
)
"""Metrics of an update that are compared with its neighbours'."""

_CHECKPOINTS: Final = """
SELECT iteration, model_uid, path FROM checkpoints WHERE model IS NOT DISTINCT FROM $model ORDER BY iteration
"""
_UPDATES: Final = "SELECT DISTINCT update FROM updates WHERE model IS NOT DISTINCT FROM $model"
_BEST: Final = """
SELECT policy_version FROM win_rates
WHERE split = 'eval' AND opponent = $opponent AND model_uid IN (SELECT unnest($uids))
GROUP BY policy_version ORDER BY wilson_low(sum(wins), sum(games)) DESC, policy_version DESC
"""
_RUNS: Final = """
SELECT run_id, config FROM runs
WHERE run_id = $run OR (parent_run_id = $run AND parent_update = $update AND NOT trains)
"""
_WON: Final = """
SELECT env_id, seed, max((result = 'win')::INTEGER)::DOUBLE
FROM game_outcomes AS o JOIN seats AS s USING (game_id, env_id)
WHERE o.run_id IN (SELECT unnest($runs)) AND o.split = 'eval' AND evaluated_uid = $uid
    AND s.model_uid = $uid AND opponent = $opponent AND branched IS NOT TRUE
GROUP BY game_id, env_id, seed ORDER BY min(o.record_number)
"""
_NUMBERS: Final = """
WITH counted AS (
    SELECT *, count(*) OVER (PARTITION BY update, opponents) AS alike,
        count(observation) OVER (PARTITION BY update, observation) AS seen
    FROM update_provenance LEFT JOIN turns USING (run_id, trajectory_id, turn_index, game_id, seat)
    WHERE fate = 'trained' AND model IS NOT DISTINCT FROM $model AND update BETWEEN $first AND $last
)
SELECT update, any_value(metrics) AS metrics, max(alike) / count(*) AS "share of one opponent",
    max(seen) / nullif(count(observation), 0) AS "share of one position",
    corr(raw_reward, reward) AS "correlation of reward and result"
FROM counted JOIN (SELECT update, metrics FROM updates WHERE model IS NOT DISTINCT FROM $model) USING (update)
GROUP BY update ORDER BY update
"""
_LEARNED: Final = """
SELECT printf('%d steps of %d games against %s, mean result %.2f', count(*), count(DISTINCT game_id),
    coalesce(array_to_string(opponents, ', '), 'nobody'), avg(raw_reward)) AS words
FROM update_provenance WHERE fate = 'trained' AND model IS NOT DISTINCT FROM $model AND update = $update
GROUP BY opponents ORDER BY count(*) DESC, words LIMIT $most
"""


@dataclass(frozen=True, slots=True)
class MeasuredUpdate:
    """One update that was measured."""

    update: int
    value: float | None
    """Its win rate, its number, or 1 where the command found it good and 0 where not; ``None``: none."""
    games: int
    """Games that were compared; 0 without games."""
    good: bool | None
    """Whether it is like the good end; ``None``: it could not be measured."""
    certain: bool = True
    """Whether the games decided it; else their mean did."""


@dataclass(frozen=True, slots=True)
class Bisection:
    """The result of :func:`bisect`."""

    run: str
    metric: str
    """The decision is by this: ``win rate against …``, the SQL or the command."""
    measured: Sequence[MeasuredUpdate]
    """In the order of updates."""
    fall: str
    """The fall between the ends, or that there is none, in words with the numbers."""
    good: int | None = None
    """The last good update; ``None``: nothing fell."""
    bad: int | None = None
    """The first bad one; more than one after the good one where those between cannot be measured."""
    unusual: Sequence[Unusual] = ()
    """Numbers that the updates after the good one, up to the bad one, have and their neighbours have not, the
    strongest first; at most five."""
    suspect: int | None = None
    """The update with the strongest of these; without any, the bad one."""
    learned_from: Sequence[str] = ()
    """The batch of the suspect in words, by opponent, the largest part first; at most five."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands that go on from here, by purpose."""

    def sentences(self) -> list[str]:
        """Return the result in words, a line each."""
        if self.good is None or self.bad is None:
            return [self.fall]
        found = f"Update {self.bad} broke it."
        if self.good + 1 < self.bad:
            found = f"One of the updates {self.good + 1} to {self.bad} broke it: none between is measurable."
        if doubtful := [str(each.update) for each in self.measured if not each.certain]:
            found += f" The games were too few to be certain of {', '.join(doubtful)}: add --games."
        learned = [f"Update {self.suspect} learned from:", *(f"  {words}" for words in self.learned_from)]
        unusual = [f"  update {each.update}: {each}" for each in self.unusual] or ["  nothing"]
        commands = [f"{purpose}: {command}" for purpose, command in self.commands.items()]
        return [self.fall, found, *learned, "Unusual beside its neighbours:", *unusual, *commands]

    def to_json(self) -> bytes:
        """Return it as JSON."""
        return msgspec.json.format(msgspec.json.encode(asdict(self)), indent=2)


def bisect(
    run: str | Run,
    metric: str = "",
    *,
    sql: str = "",
    command: str = "",
    good: int | None = None,
    bad: int | None = None,
    report: Callable[[str], object] = print,
    **options: Unpack[EvaluationOptions],
) -> Bisection:
    """Find the update at which a number of a run fell, and what is unusual about it beside its neighbours.

    By default the number is a win rate: checkpoints are evaluated in the same games, as by
    :func:`evaluation`, until these decide (:mod:`unstable_stream.history.hindsight.bisect`). Recorded games
    count, so the same call goes on where it was stopped. Of n checkpoints it evaluates at most log2(n) + 2,
    rounded up.

    Args:
        run: a run, or ``RUN@MODEL`` where it trains several.
        metric: ``win rate against OPPONENT``; by default the first opponent of the run's evaluation.
        sql: instead, SQL about this run that returns one number for ``$update``; less is worse.
        command: instead, a command whose exit status is 0 for a good checkpoint, 1 to 124 for a bad one, and
            125 for one that it cannot judge. ``{checkpoint}`` in it is RUN@UPDATE, ``{path}`` its files,
            ``{update}`` its number.
        good: an update that was good; by default the best of the checkpoints that are kept, or the first.
        bad: an update that is bad; by default the last.
        report: called with a line for each measurement.
        options: those of :func:`evaluation`; ``games``, by default 400, are at most played with each
            checkpoint in each environment.

    Raises:
        RunError: no such run, or nothing to bisect; or an evaluation was stopped: the same call goes on.
        ConfigError: an unknown metric or opponent, ends that are none, or SQL that returns no number.
        ArchiveError: there is no archive, or the SQL is wrong.
    """
    if metric and not metric.startswith(_AGAINST):
        raise ConfigError(f"metric {metric!r}: expected 'win rate against OPPONENT', or SQL, or a command")
    if sum(map(bool, (metric, sql, command))) > 1:
        raise ConfigError("a metric, SQL and a command: give one of them, which decides")
    place, named = placed(run, options.get("data"), options.get("log"))
    name = split_name(named)
    trained = _Trained(open_run(name.run, **place.named), name.model)
    if name.update is not None or name.model not in trained.run.config.model_names:
        raise ConfigError(f"{named}: expected a run, or RUN@MODEL where it trains several, without an update")
    judge: _WinRates | _Numbers
    if sql:
        updates = {*trained.kept, *(row["update"] for row in trained.ask(_UPDATES))}
        judge = _Numbers(sorted(updates), trained.number_of(sql), report)
    elif command:
        judge = _Numbers([*trained.kept], trained.verdict_of(command), report, bound=0.5)
    else:
        judge = _WinRates(trained, metric.removeprefix(_AGAINST), report, options)
    ends = _ends(judge, trained.run.id, good, bad)
    fell, words = judge.fall(ends)
    decided_by = sql or command or judge.name
    if not fell:
        return Bisection(trained.run.id, decided_by, judge.measured(), f"No fall: {words}")
    between = [update for update in judge.candidates if ends.good <= update <= ends.bad]
    last = find_fall(between, lambda update: judge.is_good(update, ends))
    unusual = find_unusual(trained.numbers(last), last)[:_SHOWN]
    suspect = unusual[0].update if unusual else last.bad
    learned = [row["words"] for row in trained.ask(_LEARNED, update=suspect, most=_SHOWN)]
    found = (words, *last, unusual, suspect, learned, trained.commands(last, suspect))
    return Bisection(trained.run.id, decided_by, judge.measured(), *found)


def _ends(judge: "_WinRates | _Numbers", run_id: str, good: int | None, bad: int | None) -> Ends:
    for update in (good, bad):
        if update is not None and update not in judge.candidates:
            there = ", ".join(map(str, judge.candidates))
            raise RunError(f"run {run_id} has nothing of update {update} to measure; it has of {there}")
    usable = judge.is_measurable
    if bad is None:
        bad = next(filter(usable, reversed(judge.candidates)), -1)
    if good is None:
        good = next((update for update in judge.best_first() if update < bad and usable(update)), None)
    if good is None:
        raise RunError(f"run {run_id}: fewer than two updates can be measured, so there is nothing to bisect")
    if good >= bad:
        raise ConfigError(f"good = {good} is not before bad = {bad}: name an update before it")
    return Ends(good, bad)


class _Trained:
    """A run, or one of the models that it trains, with the checkpoints that are still there."""

    def __init__(self, run: Run, model: str | None) -> None:
        self.run = run
        self._model = model
        located = run.place.data.located
        self.kept: dict[int, tuple[str, str | None]] = {
            row["iteration"]: (row["model_uid"], path)
            for row in self.ask(_CHECKPOINTS)
            for path in [row["path"] and located(row["path"])]
            if path is None or has_file(path)
        }
        """By update, uid and files of each; ``None``: the base model."""

    def ask(self, sql: str, **parameters: object) -> list[dict[str, Any]]:
        """Return rows about the run; ``$model`` is its model. ``Any``: values of the columns."""
        return self.run.sql(sql, {"model": self._model, **parameters}).dicts()

    def named(self, update: int) -> str:
        return f"{self.run.id}@{f'{self._model}/' if self._model else ''}{update}"

    def numbers(self, ends: Ends) -> dict[int, dict[str, float]]:
        """Return the numbers of each update up to its neighbours, by name."""
        numbers = {}
        for row in self.ask(_NUMBERS, first=ends.good - NEIGHBOURS, last=ends.bad + NEIGHBOURS):
            update, metrics = row.pop("update"), dict(row.pop("metrics"))
            known = {name: metrics[name] for name in _COMPARED if name in metrics}
            numbers[update] = known | {name: value for name, value in row.items() if value is not None}
        return numbers

    def commands(self, ends: Ends, suspect: int) -> dict[str, str]:
        """Return what to do next: see the causes of an update, and go back before it."""
        run, place = self.run.id, self.run.place
        commands = {"Its causes": f"unstable-stream why --run {run} --update {suspect}{place.data.options()}"}
        for update, (_, path) in self.kept.items():
            if update <= ends.good and (path is None or has_file(path, OPTIMIZER_FILE)):
                commands["Go back before it"] = f"unstable-stream fork {run} --at {update}{place.options}"
        return commands

    def number_of(self, sql: str) -> _Reader:
        """Return what asks SQL for the number of an update."""
        if "$update" not in sql:
            raise ConfigError("the SQL names no $update: add 'WHERE update = $update', in single quotes")

        def read(update: int) -> float | None:
            rows = self.run.sql(sql, {"update": update}).rows() or [(None,)]
            number = rows[0][0]
            if len(rows) + len(rows[0]) > 2 or not isinstance(number, int | float | Decimal | None):
                found = f"{len(rows)} rows, the first of them {rows[0]!r}"
                raise ConfigError(f"the SQL returns for update {update} {found}: expected one number")
            if number is None:
                return None
            return -math.inf if math.isnan(number) else float(number)  # as of a loss that diverged

        return read

    def verdict_of(self, command: str) -> _Reader:
        """Return what runs a command for a checkpoint: 1 if it is good, 0 if not."""
        try:
            program = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"command {command!r}: {error}") from error
        if not program:
            raise ConfigError(f"command {command!r}: expected a program and its arguments")

        def read(update: int) -> float | None:
            path = self.kept[update][1] or self.run.config.model
            words = program
            for key, value in (("checkpoint", self.named(update)), ("path", path), ("update", str(update))):
                words = [word.replace(f"{{{key}}}", value) for word in words]
            try:
                status = subprocess.run(words, check=False, stdout=2).returncode
            except OSError as error:
                raise ConfigError(f"the command {words} cannot be run: {error}") from error
            if not 0 <= status <= _CANNOT_JUDGE:
                raise RunError(
                    f"the command {words} ended with status {status}: expected 0 for good, 1 to 124 for bad, "
                    "125 where it cannot judge"
                )
            return None if status == _CANNOT_JUDGE else float(status == 0)

        return read


class _Numbers:
    """One number of each update, without chance."""

    name = ""

    def __init__(
        self, candidates: Sequence[int], read: _Reader, report: _Report, bound: float | None = None
    ) -> None:
        self.candidates = candidates
        self._read = read
        self._report = report
        self._known: dict[int, float | None] = {}
        self._bound = bound

    def _number(self, update: int) -> float | None:
        if update not in self._known:
            number = self._known[update] = self._read(update)
            self._report(f"update {update}: {'nothing' if number is None else format(number, '.6g')}")
        return self._known[update]

    def is_measurable(self, update: int) -> bool:
        return self._number(update) is not None

    def best_first(self) -> Iterable[int]:
        return self.candidates

    def fall(self, ends: Ends) -> tuple[bool, str]:
        before, after = map(self._number, ends)
        if before is None or after is None:
            update = ends.good if before is None else ends.bad
            raise RunError(f"update {update} cannot be measured: name another end")
        if self._bound is None:  # without a fall, just below the good end, which is good
            half = (max(-_LARGEST, min(_LARGEST, end)) / 2 for end in (before, after))
            self._bound = sum(half) if before > after else math.nextafter(before, -math.inf)
        return before > after, f"{before:.6g} at update {ends.good} and {after:.6g} at update {ends.bad}"

    def is_good(self, update: int, ends: Ends) -> bool | None:
        return self._is_good(self._number(update))

    def measured(self) -> list[MeasuredUpdate]:
        known = sorted(self._known.items())
        return [MeasuredUpdate(update, value, 0, self._is_good(value)) for update, value in known]

    def _is_good(self, number: float | None) -> bool | None:
        return None if number is None or self._bound is None else number > self._bound


class _WinRates:
    """Win rates of checkpoints against one opponent, in the same games."""

    def __init__(self, trained: _Trained, against: str, report: _Report, options: EvaluationOptions) -> None:
        run, settings = trained.run, trained.run.config.evaluation
        own = [opponent.name for opponent in settings.opponents]
        self.candidates = [*trained.kept]
        if not (against or own):
            raise ConfigError(f"run {run.id} was evaluated against nobody: name an opponent in the metric")
        if len(self.candidates) < 2:
            raise RunError(f"run {run.id} has {len(self.candidates)} checkpoints, and to bisect takes two")
        self._trained = trained
        self._report = report
        self._against = against or own[0]
        self._seed = options.get("seed", run.config.seed if settings.seed is None else settings.seed)
        self._options: EvaluationOptions = {**options, "data": run.place.root, "log": run.place.log}
        most, first = options.get("games", _MOST_GAMES), settings.max_eval_games_per_ckpt
        planned = self._evaluation(self.candidates[-1], most, 0).config
        self._opponent = planned.evaluation.opponents[0].name
        self._config = planned.model_dump(mode="json")
        self._envs = [env.env_id for env in planned.evaluated_envs]
        recorded = self._opponent in own and first >= _FEWEST_GAMES
        self.name = f"{_AGAINST}{self._opponent}"
        self._blocks = block_sizes(first if recorded else _FIRST_GAMES, most)
        self._pairs = PairedGames(self._play, len(self._blocks), _ALPHA / decisions(len(self.candidates)))
        self._judged: dict[int, tuple[bool, bool]] = {}

    def is_measurable(self, update: int) -> bool:
        return update in self._trained.kept

    def best_first(self) -> Iterable[int]:
        uids = [uid for uid, _ in self._trained.kept.values()]
        rows = self._trained.run.sql(_BEST, {"opponent": self._opponent, "uids": uids}).rows()
        return [*(update for (update,) in rows), *self.candidates]

    def fall(self, ends: Ends) -> tuple[bool, str]:
        less = self._pairs.difference(*ends)
        self._judged = {ends.good: (True, True), ends.bad: (less.low <= 0, less.low > 0 or less.high < 0)}
        (before, games), (after, _) = map(self._pairs.rate, ends)
        return less.low > 0, (
            f"{self.name} is {before:.1%} at update {ends.good} and {after:.1%} at update {ends.bad}, in the "
            f"same {games} games; the difference is {100 * less.mean:.1f} points (interval "
            f"{100 * less.low:.1f} to {100 * less.high:.1f})"
        )

    def is_good(self, update: int, ends: Ends) -> bool | None:
        more = self._pairs.towards_good(update, ends)
        self._judged[update] = (more.mean > 0, more.low > 0 or more.high < 0)
        return more.mean > 0

    def measured(self) -> list[MeasuredUpdate]:
        judged = sorted(self._judged.items())
        return [MeasuredUpdate(update, *self._pairs.rate(update), *how) for update, how in judged]

    def _evaluation(self, update: int, games: int, block: int) -> Run:
        options: EvaluationOptions = {**self._options, "games": games, "seed": self._seed + block}
        return evaluation(self._trained.named(update), self._against, **options)

    def _play(self, update: int, block: int) -> dict[Game, float]:
        """Return the results of a block; what is not recorded of it is played."""
        size, seed = self._blocks[block], self._seed + block
        wanted = [
            (env, eval_game_seed(seed, plain_id(env), number)) for env in self._envs for number in range(size)
        ]
        known = self._recorded(update)
        if not known.keys() >= set(wanted):
            self._report(f"update {update}: {len(wanted)} games against {self._opponent}")
            played = self._evaluation(update, size, block).start(live=False)
            if played.state != "completed":
                raise RunError(f"evaluation {played.id} was {played.state}: the same command goes on")
            known = self._recorded(update)
        if not known:
            raise RunError(f"{self._trained.named(update)} meets {self._opponent} in no game: no win rate")
        return {game: known[game] for game in wanted if game in known}

    def _recorded(self, update: int) -> dict[Game, float]:
        """Return what is recorded of a checkpoint that played in the same way: its result in each game."""
        run, (uid, _) = self._trained.run, self._trained.kept[update]
        rows = query(run.place.archive, _RUNS, {"run": run.id, "update": update}).rows
        runs = [run_id for run_id, config in rows if self._plays_alike(json.loads(config))]
        wanted = {"runs": runs, "uid": uid, "opponent": self._opponent}
        won = query(run.place.archive, _WON, wanted).rows
        return {(env, seed): result for env, seed, result in reversed(won)}  # the first of equal games

    def _plays_alike(self, config: Mapping[str, Any]) -> bool:
        envs, own = (each["eval_envs"] or each["train_envs"] for each in (config, self._config))
        return envs == own and all(value_at(config, key) == value_at(self._config, key) for key in _SAME)
