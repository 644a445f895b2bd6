"""The first depth: the books of a run, and the checkpoint files that they name."""

import asyncio
from collections.abc import Callable, Iterator

from unstable_stream.errors import ConfigError
from unstable_stream.log.port import EventLog
from unstable_stream.proofs.balance import balance
from unstable_stream.proofs.evidence import Evidence, weights_of
from unstable_stream.proofs.ledger import Ledger
from unstable_stream.proofs.reports import AuditReport, Problem
from unstable_stream.runs.history import hear_of_runs

__all__ = ["audit_run"]


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
    for _, (where, checkpoint) in sorted(ledger.checkpoints.items()):
        try:
            weights = weights_of(checkpoint, located)
        except ConfigError as error:
            yield Problem("checkpoint file not found", f"{where}: {checkpoint.model_uid}: {error}")
            continue
        if weights is None or weights.sha256 == checkpoint.sha256:
            continue
        text = f"{checkpoint.model_uid}: {weights.path}"
        if weights.sha256 is None:
            yield Problem("checkpoint file missing", text)
        else:
            found = f"has sha256 {weights.sha256}, recorded is {checkpoint.sha256}"
            yield Problem("checkpoint file altered", f"{text} {found}")
