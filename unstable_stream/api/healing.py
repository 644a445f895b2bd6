"""Healing: a run that stops at a sign of a collapse is forked before it, with what holds a policy.

Both branches stay in the log, and the one that plays better goes on.
"""

import math
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any, Final

from unstable_stream.api.run import Run
from unstable_stream.api.sweep import view_of
from unstable_stream.errors import ConfigError
from unstable_stream.events import CollapseWarning
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import list_runs
from unstable_stream.runs.sweeps import ON_COLLAPSE, first_and_last

_STEP_SHARE: Final = 0.2
_PAST_OPPONENTS: Final = 4
_KL_COEF: Final = 0.02


def healing_settings(config: RunConfig) -> dict[str, Any]:
    """Return what a fork before a collapse changes: a fifth of the step, past checkpoints as opponents.

    A policy that has a base model is pulled towards it too, unless it was pulled before.
    """
    pool = config.model_pool
    settings: dict[str, Any] = {
        "learner.learning_rate": config.learner.learning_rate * _STEP_SHARE,
        "learner.optimizer_steps": 1,
        "model_pool.max_active_lora": max(_PAST_OPPONENTS, pool.max_active_lora),
    }
    if pool.sample_mode == "mirror":
        settings["model_pool.sample_mode"] = "lagged"
    if config.learner.parameters == "lora" and getattr(config.algorithm, "kl_coef", None) == 0:
        settings["algorithm.kl_coef"] = _KL_COEF
    return settings


def heal(run: Run, times: int = 2, *, live: bool = True, report: Callable[[str], object] = print) -> Run:
    """Start a run, or go on with it; where it collapses, fork it before that, and return the better branch.

    A fork begins as :func:`healing_settings` says, at the newest checkpoint before the first update that may
    have caused the sign. When it has ended, the branch that won more of its last evaluation games goes on;
    the run it was forked from counts only by games that it played since the collapse began.

    Args:
        run: built or stopped, with ``on_collapse="stop"`` and opponents to be evaluated against.
        times: forks at most.
        live: show the progress of the runs.
        report: called with a line for each fork, and for the branch that goes on.

    Raises:
        ConfigError: the run does not stop at a collapse, or is not evaluated.
    """
    *_, last = branches(run, times, live=live, report=report)
    return last


def branches(run: Run, times: int, *, live: bool, report: Callable[[str], object]) -> Iterator[Run]:
    """Yield each run before it starts or goes on: as :func:`heal`, for who may be stopped by a signal."""
    if run.config.learner.on_collapse != "stop" or not run.config.evaluation.opponents:
        raise ConfigError(
            f'run {run.id} cannot heal: it needs learner.on_collapse = "stop", and opponents in '
            "evaluation.opponents, which tell which branch is better"
        )
    yield run
    if run.state == "built":
        run.start(live=live)
    elif not _sign(run):
        run.resume(live=live)
    for _ in range(times):
        sign = _sign(run)
        if sign is None or (sign.rule == "unplayable" and sign.update == 1):  # it never could play
            break
        settings = healing_settings(run.config)
        fork = run.fork(sign.fork_at, **settings)
        report(
            f"run {run.id} stopped at update {sign.update}: {sign.text}\nrun {fork.id} goes on after update "
            f"{sign.fork_at} with {', '.join(f'{key}={value}' for key, value in settings.items())}"
        )
        yield fork
        fork.start(live=live)
        if fork.state == "stopped" and not _sign(fork):
            return  # somebody stopped it
        before, after = _won(run, sign.began), _won(fork, 0)
        if before > after:
            report(f"run {run.id} won {before:.1%}, its fork {after:.1%}: the first goes on")
            yield run
            run.resume(live=live, on_collapse="warn")
            return
        run = fork


def _sign(run: Run) -> CollapseWarning | None:
    """Return the sign of a collapse that stopped a run; ``None``: none did."""
    ended = next(each.ended for each in run.place.ask_history(list_runs) if each.run_id == run.id)
    if ended is None or not ended.reason.startswith(ON_COLLAPSE):
        return None
    return run.collapse().warnings[-1]


def _won(run: Run, since: int) -> float:
    """Return the share of its last evaluation games that a run won; before ``since`` they do not count."""
    view = view_of(run.place, run.id, run.config)
    results = [each for each in first_and_last(view).values() if each.update >= since]
    return fmean(each.after for each in results) if results else -math.inf
