"""The balance of a ledger: counts that must add up, and each thing that does not, with its place."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

import numpy as np

from unstable_stream.events import (
    UNREADABLE,
    GameAbandoned,
    GameOutcome,
    Step,
    Trajectory,
    checkpoint_uid,
    step_id,
    trajectory_id,
)
from unstable_stream.history.proofs.ledger import ABSENT, MAY_BE_REPLAYED, Ledger, LedgerView, named
from unstable_stream.history.proofs.reports import AuditReport, GameCounts, Problem, StepCounts, abridged


def balance(ledger: Ledger, more_problems: Iterable[Problem] = ()) -> AuditReport:
    """Weigh what has been folded; nothing may be folded after that.

    Args:
        more_problems: found outside the log.
    """
    for index in ledger.indexes.values():
        index.seal()
    problems = [*ledger.problems, *_identity_problems(ledger)]
    games = {split: _count_games(ledger, split) for split in ("train", "eval")}
    problems += _game_problems(ledger, games)
    steps, step_problems = _count_steps(ledger)
    problems += [*step_problems, *_update_problems(ledger), *_checkpoint_problems(ledger)]
    if ledger.run.state == "completed":
        problems += [
            Problem("bad record not on dead-letters", f"{where}: {error}")
            for where, error in ledger.unreadable.items()
            if where not in ledger.rejected
        ]
    return AuditReport(
        run_id=ledger.run.run_id,
        state=ledger.run.state,
        silence=ledger.run.silence,
        games=games,
        steps=steps,
        updates=len(ledger.updates),
        checkpoints=len(ledger.checkpoints),
        redelivered=sum(len(index.duplicates) for index in ledger.indexes.values()),
        replayed=sum(len(ledger.records(kind).conflicts) for kind in MAY_BE_REPLAYED),
        rejected=sum(
            run_id == ledger.run.run_id or where in ledger.unreadable
            for where, run_id in ledger.rejected.items()
        ),
        problems=abridged((*problems, *more_problems)),
    )


def _identity_problems(ledger: Ledger) -> Iterator[Problem]:
    for kind, index in ledger.indexes.items():
        for later, first in () if kind in MAY_BE_REPLAYED else index.conflicts:
            yield Problem(
                "event id with two contents",
                f"{index.where(later)}: {kind.__name__} has the id of the one at {index.where(first)}, "
                "but other content",
            )


def _count_games(ledger: Ledger, split: str) -> GameCounts:
    games = [game for game in ledger.games.values() if game.split == split]
    started = [game for game in games if game.started != ABSENT]
    return GameCounts(
        started=len(started),
        finished=sum(game.finished != ABSENT for game in games),
        # A game that one worker abandoned and another finished counts as finished: its steps exist.
        abandoned=sum(game.finished == ABSENT != game.abandoned for game in games),
        in_flight=sum(game.finished == ABSENT == game.abandoned for game in started),
    )


def _game_problems(ledger: Ledger, games: Mapping[str, GameCounts]) -> Iterator[Problem]:
    for game_id, game in ledger.games.items():
        finished = game.finished != ABSENT
        if game.started == ABSENT and (finished or game.abandoned != ABSENT):
            kind, slot = (GameOutcome, game.finished) if finished else (GameAbandoned, game.abandoned)
            text = f"{ledger.where(kind, slot)}: game {game_id} ended, but never started"
            yield Problem("game never started", text)
    for split, counts in games.items():
        of_split = [game for game in ledger.games.values() if game.split == split]
        indices = {game.game_index for game in of_split if game.started != ABSENT}
        first = ledger.run.games_before if split == "train" else 0
        for missing in _gaps(indices, first):
            text = f"{split} game {missing} was never started, later ones were"
            yield Problem("game index left out", text)
        if counts.started != counts.finished + counts.abandoned + counts.in_flight:
            yield Problem(
                "games do not add up",
                f"{split}: {counts.started} started, but {counts.finished} finished + "
                f"{counts.abandoned} abandoned + {counts.in_flight} in flight",
            )
        if ledger.run.state == "completed" and counts.in_flight:
            text = f"the run is over, but {counts.in_flight} {split} games never ended"
            yield Problem("games in flight", text)


def _gaps(numbers: Set[int], first: int) -> Iterator[str]:
    """Yield the ranges that are missing from ``first`` to the largest number, which a record may invent."""
    for number in sorted(numbers):
        if number > first:
            yield str(first) if number == first + 1 else f"{first} to {number - 1}"
        first = max(first, number + 1)


def _count_steps(ledger: Ledger) -> tuple[StepCounts, list[Problem]]:
    filtering = bool(ledger.run.settings) and ledger.run.config().collector.filter_opponent_invalid
    # Replayed and imitated steps are those of other runs' games: no game of its own promises any.
    imitates = bool(ledger.run.settings) and ledger.run.config().imitates
    replays = imitates or ledger.run.replayed_run_id is not None
    games = ledger.games.values()
    promised = (game.filtered_steps if filtering else game.steps for game in games)
    index = ledger.records(Step)
    in_log = len(index) - len(index.duplicates) - len(index.conflicts)
    expected = in_log if replays else sum(promised)
    produced = in_log if ledger.steps_kept else expected
    trained, dropped = sum(update.trained for update in ledger.updates.values()), ledger.dropped.total()
    problems = [*_view_problems(ledger)]
    set_aside = unshaped = 0
    undecodable: Set[str] = frozenset()
    if not replays:
        set_aside, unshaped = _match_steps(ledger, filtering, problems)
        undecodable = _undecodable_steps(ledger, filtering)
    set_aside += len(undecodable) if ledger.steps_kept else 0
    problems += _use_problems(ledger, undecodable)
    if expected != produced + set_aside + unshaped:
        problems.append(
            Problem(
                "steps do not add up",
                f"the outcomes promise {expected} steps, but {produced} were produced, {set_aside} are "
                f"on dead-letters and {unshaped} still to be shaped",
            )
        )
    counts = StepCounts(
        expected=expected,
        produced=produced,
        set_aside=set_aside,
        unshaped=unshaped,
        trained=trained,
        dropped=dict(sorted(ledger.dropped.items())),
        # What cannot be made was not produced.
        pending=produced - trained - dropped + ledger.dropped[UNREADABLE] * ledger.steps_kept,
    )
    return counts, problems


def _match_steps(ledger: Ledger, filtering: bool, problems: list[Problem]) -> tuple[int, int]:
    """Compare the steps of each trajectory with its turns; count those set aside, and those to be shaped."""
    turns_of = _turns_by_view(ledger)
    set_aside = unshaped = 0
    for trajectory, view in ledger.views.items():
        got = turns_of(view.number)
        if not view.trained:
            if got:
                problems.append(
                    Problem(
                        "steps without trajectory",
                        f"{len(got)} steps are of trajectory {trajectory}, absent from the log or not "
                        "trained",
                    )
                )
            continue
        turns = [] if filtering and view.filtered else list(range(view.turns))
        if got == turns or not ledger.steps_kept:
            continue
        where = ledger.where(Trajectory, view.slot)
        if not got and where in ledger.rejected:
            set_aside += len(turns)
        elif not got and ledger.run.state != "completed":
            unshaped += len(turns)
        else:
            problems.append(
                Problem(
                    "steps do not match their trajectory",
                    f"{where}: trajectory {trajectory} has {len(turns)} turns to train on, but steps "
                    f"{got} are in the log",
                )
            )
    return set_aside, unshaped


def _turns_by_view(ledger: Ledger) -> Callable[[int], list[int]]:
    """Return a look-up: a trajectory's number to the turns, in order, of which there are steps."""
    index = ledger.records(Step)
    again = [later for later, _ in (*index.duplicates, *index.conflicts)]
    views = np.delete(np.frombuffer(ledger.step_views, dtype=np.intc), again)
    turns = np.delete(np.frombuffer(ledger.step_turns, dtype=np.intc), again)
    order = np.lexsort((turns, views))
    turns = turns[order]
    bounds = np.searchsorted(views[order], np.arange(len(ledger.views) + 1))
    return lambda number: turns[bounds[number] : bounds[number + 1]].tolist()


def _view_problems(ledger: Ledger) -> Iterator[Problem]:
    for trajectory, view in ledger.views.items():
        game = view.game
        if game is None:
            continue  # only steps name it
        where = ledger.where(Trajectory, view.slot)
        if game.finished == ABSENT:
            text = f"{where}: game {game.game_id} of trajectory {trajectory} has no outcome"
            yield Problem("trajectory without outcome", text)
        elif view.trained and (view.seat, view.reward, view.turns) not in game.seats:
            says = [(reward, turns) for seat, reward, turns in game.seats if seat == view.seat]
            yield Problem(
                "trajectory and outcome differ",
                f"{where}: seat {view.seat} has reward {view.reward} after {view.turns} turns, the "
                f"outcome at {ledger.where(GameOutcome, game.finished)} says {says[0] if says else None}",
            )
    for game_id, game in ledger.games.items():
        for seat, _, turns in game.seats if game.split == "train" else ():
            view_of = ledger.views.get(trajectory_id(game_id, seat)) if turns else None
            if turns and _is_absent(view_of) and trajectory_id(game_id, seat) not in ledger.letters:
                where = ledger.where(GameOutcome, game.finished)
                yield Problem("trajectory missing", f"{where}: seat {seat} of game {game_id} has none")


def _is_absent(view: LedgerView | None) -> bool:
    return view is None or view.slot == ABSENT


def _undecodable_steps(ledger: Ledger, filtering: bool) -> frozenset[str]:
    """Return the ids of the steps of trajectories that are on ``dead-letters`` and cannot be decoded."""
    found: set[str] = set()
    for game in ledger.games.values() if ledger.letters else ():
        if game.split != "train":
            continue
        shaped = game.filtered_steps if filtering else game.steps
        for seat, _, turns in game.seats:
            trajectory = trajectory_id(game.game_id, seat)
            # Filtered, a game that an invalid move ended gives the steps of that one seat.
            is_shaped = shaped in (game.steps, turns)
            if is_shaped and trajectory in ledger.letters and _is_absent(ledger.views.get(trajectory)):
                found.update(step_id(trajectory, turn) for turn in range(turns))
    return frozenset(found)


def _use_problems(ledger: Ledger, undecodable: Set[str]) -> Iterator[Problem]:
    """Find steps that updates name without their being in the log, or more than once."""
    index = ledger.records(Step)
    used_by = array("i", [ABSENT]) * len(index)
    strangers: dict[str, int] = {}
    users = [*ledger.updates.values(), *ledger.drops.values()]
    for number, update in enumerate(users):
        where = ledger.where(update.kind, update.slot)
        names = update.step_ids.decode().splitlines()
        for name, slot in zip(names, index.find(names), strict=True):
            before = strangers.get(name, ABSENT) if slot < 0 else used_by[slot]
            if before != ABSENT:
                earlier = ledger.where(users[before].kind, users[before].slot)
                yield Problem(
                    "step trained or dropped twice", f"{where}: step {name} was consumed at {earlier} already"
                )
            if slot >= 0:
                used_by[slot] = number
                continue
            strangers[name] = number
            if ledger.steps_kept and before == ABSENT and name not in undecodable:
                yield Problem("unknown step consumed", f"{where}: step {name} is not in the log")


def _update_problems(ledger: Ledger) -> Iterator[Problem]:
    made: dict[str, set[int]] = {}
    for model, number in ledger.updates:
        made.setdefault(model, set()).add(number)
    for model, numbers in sorted(made.items()):
        for missing in _gaps(numbers, ledger.run.updates_before + 1):
            yield Problem("update left out", f"there is no update {named((model, missing))}, but later ones")
    for key, update in ledger.updates.items():
        model, number = key
        if update.model_uid not in (None, checkpoint_uid(number, model or None)):
            yield Problem("wrong checkpoint", f"update {named(key)} names checkpoint {update.model_uid}")
        # The other way round is in order: a stopped run publishes the weights that `save_every` left out.
        if update.model_uid is not None and key not in ledger.checkpoints:
            yield Problem(
                "checkpoint lost",
                f"update {named(key)} names checkpoint {update.model_uid}, topic checkpoints has none",
            )
    if not ledger.run.settings:
        yield Problem("run never started", f"there is no run-started event of {ledger.run.run_id}")
    elif ledger.run.state == "completed":
        config = ledger.run.config()
        needed = config.learner.iterations - ledger.run.updates_before
        for name in config.model_names:
            model = name or ""
            done = len(made.get(model, ()))
            if done < needed:
                of_model = f" of {model}" if model else ""
                text = f"the run is completed with {done} of {needed} updates{of_model}"
                yield Problem("updates missing", text)


def _checkpoint_problems(ledger: Ledger) -> Iterator[Problem]:
    for key, (_, checkpoint) in ledger.checkpoints.items():
        if checkpoint.iteration > ledger.run.updates_before and key not in ledger.updates:
            text = f"no update made checkpoint {checkpoint.model_uid}"
            yield Problem("checkpoint without update", text)
    for model in sorted({model for model, _ in ledger.updates}):
        if (model, ledger.run.updates_before) not in ledger.checkpoints:
            of_model = f" of {model}" if model else ""
            yield Problem("checkpoint missing", f"the initial policy{of_model} was never published")
