"""What a service has recorded since its start, as the log has it."""

import msgspec
import pytest

from tests.history.proofs.test_audit import history
from tests.services.launch.test_processes import append, own
from unstable_stream.events import Event, Metrics
from unstable_stream.log.port import EventLog
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.services.launch.supervisor import RecordedProgress
from unstable_stream.services.tracking.service_reports import ARCHIVER, LAUNCHER

RUN = "run-progress"


def report(source: str) -> Metrics:
    return Metrics(event_id=f"of-{source}", run_id=RUN, occurred_at_ms=1, source=source, values={"x": 1.0})


ACHIEVED = {"learner": "LearnerUpdate", "collector": "GameOutcome", "processors": "Step"}


def of_kind(kind: str) -> Event:
    return next(own(event, RUN) for event in history() if type(event).__name__ == kind)


@pytest.mark.parametrize("service", [*ACHIEVED, "archiver"])
async def test_only_the_own_work_since_the_start_counts(any_log: EventLog, service: str) -> None:
    await create_declared_topics(any_log, load_topics())
    progress = RecordedProgress(any_log, RUN)
    work = report(ARCHIVER) if service == "archiver" else of_kind(ACHIEVED[service])
    await append(any_log, [work])
    await progress.begin(service)
    others = [of_kind(kind) for name, kind in ACHIEVED.items() if name != service]
    await append(any_log, [*others, report(LAUNCHER), msgspec.structs.replace(work, run_id="another-run")])
    assert not await progress.made(service)
    await append(any_log, [work])
    assert await progress.made(service)


async def test_what_leaves_no_trace_may_always_have_made_progress(any_log: EventLog) -> None:
    progress = RecordedProgress(any_log, RUN)
    await progress.begin("monitor")
    assert await progress.made("monitor")
