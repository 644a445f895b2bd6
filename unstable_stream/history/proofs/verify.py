"""Two depths of proof of a run: its books, and then every derived event recomputed from its causes.

The audit is the first: the ledger of a run, and the checkpoint files that it names. To verify is the second:

- ``steps``, ``ratings`` and the processors' snapshots: folded again; batches, drops and the use of every
  step: the draws made again (:mod:`~.recompute`).
- the collector's snapshot: its run folded again (:mod:`~.check_snapshots`).
- on request, updates: trained on again (:mod:`~.repeat_training`).
- games and trajectories: played again from seed and actions (:mod:`~.play_again`).
- checkpoint files against their recorded digests.

Both sides are compared as this version of the package encodes them, so that a body written before a field
with a default existed is not taken for another. The ledger has indexed the recorded events: its indexes are
what is compared with, and the rest of it is let go before anything is recomputed. So memory is the ledger's,
or some 100 bytes for every step, rating and trajectory, whichever is more.
"""

import asyncio
from collections.abc import Callable, Mapping

from unstable_stream.errors import ConfigError
from unstable_stream.events import Checkpoint, Rating, Step
from unstable_stream.history.proofs.balance import balance
from unstable_stream.history.proofs.check_snapshots import check_collector
from unstable_stream.history.proofs.ledger import Evidence, Progress
from unstable_stream.history.proofs.play_again import recompute_games
from unstable_stream.history.proofs.recompute import recompute_batches, recompute_steps_and_ratings
from unstable_stream.history.proofs.repeat_training import repeat_training
from unstable_stream.history.proofs.reports import AuditReport, Check, Problem, VerifyReport
from unstable_stream.log.port import EventLog
from unstable_stream.log.stores.adapter_format import MODEL_WEIGHTS_FILE, WEIGHTS_FILE
from unstable_stream.log.stores.address import joined
from unstable_stream.log.stores.checkpoint_files import sha256_of
from unstable_stream.runs.code import changed_code, find_code
from unstable_stream.runs.history import hear_of_runs
from unstable_stream.runs.verdicts import changed_environments


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
    checks = await recompute_steps_and_ratings(evidence, steps, ratings)
    if games:
        checks += await recompute_games(evidence, jobs)
    checks += await recompute_batches(evidence, steps, audit.steps.pending)
    checks.append(await check_collector(evidence))
    files, _ = await asyncio.to_thread(_check_files, checkpoints, located)
    checks.append(files)
    trained = None
    if train:
        repeated = await repeat_training(evidence, checkpoints, updates=updates, located=located)
        checks += [repeated.updates, repeated.weights]
        trained = repeated.summary()
    return VerifyReport(
        run_id=run_id,
        state=audit.state,
        problems=(*audit.problems, *(problem for check in checks for problem in check.problems)),
        audit=audit,
        checks=checks,
        notes=[
            *evidence.missing,
            *changed_code(evidence.run.extensions, evidence.run.config()),
            *changed_environments(evidence.run.environments),
        ],
        trained=trained,
    )


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
    _, problems = await asyncio.to_thread(_check_files, ledger.checkpoints, located)
    return balance(ledger, problems)


def _check_files(
    checkpoints: Mapping[tuple[str, int], tuple[str, Checkpoint]], located: Callable[[str], str]
) -> tuple[Check, list[Problem]]:
    """Compare the weights there are of checkpoints, past all caches, with their digests.

    Args:
        checkpoints: by model and iteration, each with its place in the log.
        located: returns where the checkpoint is that an event names.

    Raises:
        StoreError: they are in a store that refuses, or cannot be reached.
    """
    check, problems = Check("checkpoint files"), []
    for _, (where, checkpoint) in sorted(checkpoints.items()):
        if checkpoint.path is None or checkpoint.sha256 is None:
            continue
        name = MODEL_WEIGHTS_FILE if checkpoint.parameters == "all" else WEIGHTS_FILE
        uid, event_id, recorded = checkpoint.model_uid, checkpoint.event_id, checkpoint.sha256
        try:
            location = located(checkpoint.path)
            path, found = joined(location, name), sha256_of(location, name)
        except ConfigError as error:  # the client of their store is not installed
            problems.append(Problem("checkpoint file not found", f"{where}: {uid}: {error}"))
            check.differs(where, event_id, str(error))
            continue
        if found is None:
            problems.append(Problem("checkpoint file missing", f"{uid}: {path}"))
            check.gone += 1
            continue
        check.compared += 1
        if found != recorded:
            says = f"{uid}: {path} has sha256 {found}, recorded is {recorded}"
            problems.append(Problem("checkpoint file altered", says))
            check.differs(where, event_id, f"{path} is another file", "$.sha256", recorded, found)
    return check, problems
