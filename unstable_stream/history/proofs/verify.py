"""Two depths of proof of a run: its books, and then every derived event recomputed from its causes.

The audit is the first: the ledger of a run, and the checkpoint files that it names. To verify is the second:

- ``steps``, ``ratings`` and the processors' snapshots: folded again (:mod:`~.recompute_steps_and_ratings`).
- batches, drops and the use of every step: the draws made again (:mod:`~.recompute_batches`).
- the collector's snapshot: its run folded again (:mod:`~.check_snapshots`).
- on request, updates: trained on again (:mod:`~.repeat_training`).
- games and trajectories: played again from seed and actions (:mod:`~.recompute_games`).
- checkpoint files against their recorded digests.

Both sides are compared as this version of the package encodes them, so that a body written before a field
with a default existed is not taken for another. The ledger has indexed the recorded events: its indexes are
what is compared with, and the rest of it is let go before anything is recomputed. So memory is the ledger's,
or some 100 bytes for every step, rating and trajectory, whichever is more.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from unstable_stream.events import Checkpoint, Rating, Step
from unstable_stream.history.proofs.balance import balance
from unstable_stream.history.proofs.check_collector import check_collector
from unstable_stream.history.proofs.evidence import Evidence, Progress, weights_of
from unstable_stream.history.proofs.ledger import Ledger
from unstable_stream.history.proofs.recompute_batches import recompute_batches
from unstable_stream.history.proofs.recompute_steps_and_ratings import recompute_steps_and_ratings
from unstable_stream.history.proofs.repeat_training import repeat_training
from unstable_stream.history.proofs.reports import AuditReport, Check, Difference, Problem, VerifyReport
from unstable_stream.log.port import EventLog
from unstable_stream.runs.code import changed_code, find_code
from unstable_stream.runs.history import hear_of_runs


async def verify_run(
    log: EventLog,
    run_id: str,
    *,
    games: bool = True,
    jobs: int = 1,
    train: bool = False,
    updates: int | None = 5,
    located: Callable[[str], str] = str,
    progress: Progress = lambda what, done, total: None,
) -> VerifyReport:
    """Verify one run up to its present state.

    Args:
        log: the event log.
        run_id: the full id.
        games: also play every game again.
        jobs: processes that play.
        train: also train on recorded updates again.
        updates: how many of them, spread over the run; ``None``: all.
        located: returns where the checkpoint is that an event names.
        progress: called with the progress.

    Raises:
        RunError: no such run.
        ConfigError: the run's reward transformations cannot be loaded here.
        LearnerError: the run's learner cannot be made here.
        EnvironmentUnavailableError: the run's games cannot be played here.
    """
    evidence = await Evidence.read(log, run_id, progress)
    find_code(evidence.run.config())
    ledger = await evidence.ledger()
    audit = balance(ledger)
    steps, ratings = ledger.records(Step), ledger.records(Rating)
    checkpoints = dict(sorted(ledger.checkpoints.items()))
    del ledger
    checks = await recompute_steps_and_ratings(evidence, steps, ratings, games=games, jobs=jobs)
    checks += await recompute_batches(evidence, steps, audit.steps.pending)
    checks.append(await check_collector(evidence))
    checks.append(await asyncio.to_thread(_check_files, list(checkpoints.values()), located))
    trained = None
    if train:
        repeated = await repeat_training(evidence, checkpoints, updates=updates, located=located)
        checks += [repeated.updates, repeated.weights]
        trained = repeated.summary()
    notes = [*evidence.missing, *changed_code(evidence.run.extensions, evidence.run.config())]
    return VerifyReport.of(audit, checks, notes, trained)


def _check_files(checkpoints: Iterable[tuple[str, Checkpoint]], located: Callable[[str], str]) -> Check:
    """Compare the checkpoint files there are with their digests; each comes with its place in the log."""
    check = Check("checkpoint files")
    for where, checkpoint, path, sha256, error in weights_of(checkpoints, located):
        if error:
            check.differs(Difference(where, checkpoint.event_id, error))
            continue
        check.gone += sha256 is None
        check.compared += sha256 is not None
        if sha256 not in (None, checkpoint.sha256):
            what = f"{path} is another file"
            check.differs(Difference(where, checkpoint.event_id, what, "$.sha256", checkpoint.sha256, sha256))
    return check


async def audit_run(log: EventLog, run_id: str, *, located: Callable[[str], str] = str) -> AuditReport:
    """Read everything that the log holds of a run now, check the files it names, and report.

    Args:
        log: the event log.
        run_id: the full id.
        located: returns where the checkpoint is that an event names.

    Raises:
        RunError: no such run.
        ConfigError: its configuration does not make sense to this version of the package.
    """
    ledger = await (await Evidence.read(log, run_id)).ledger()
    await hear_of_runs(log, [ledger.run])
    return balance(ledger, await asyncio.to_thread(lambda: list(_file_problems(ledger, located))))


def _file_problems(ledger: Ledger, located: Callable[[str], str]) -> Iterator[Problem]:
    checkpoints = [ledger.checkpoints[key] for key in sorted(ledger.checkpoints)]
    for where, checkpoint, path, sha256, error in weights_of(checkpoints, located):
        if error:
            yield Problem("checkpoint file not found", f"{where}: {checkpoint.model_uid}: {error}")
        elif sha256 is None:
            yield Problem("checkpoint file missing", f"{checkpoint.model_uid}: {path}")
        elif sha256 != checkpoint.sha256:
            found = f"has sha256 {sha256}, recorded is {checkpoint.sha256}"
            yield Problem("checkpoint file altered", f"{checkpoint.model_uid}: {path} {found}")
