"""Record that a run starts, ends or shall have other engines; :mod:`.resume` records that it goes on."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from unstable_stream.errors import RunError
from unstable_stream.events import (
    AdapterProbe,
    Checkpoint,
    EnginesWanted,
    EnvironmentUse,
    Event,
    LearnerUpdate,
    RunFinished,
    RunStarted,
    checkpoint_uid,
    event_id,
    named_id,
    now_ms,
)
from unstable_stream.log.port import EventLog, Producer
from unstable_stream.log.records import record_from_event
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE
from unstable_stream.log.stores.address import LONGEST_NAME, checked_address
from unstable_stream.log.stores.checkpoint_files import opened_checkpoint
from unstable_stream.runs.code import code_in_use
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import list_runs, read_history
from unstable_stream.runs.starts import present_ends
from unstable_stream.version import __version__

if TYPE_CHECKING:
    from unstable_stream.runs.fork import Fork


def derived_name(kind: str, origin: str) -> str:
    """Return the name of a run about another run or a model: ``eval-demo``, cut where it is too long."""
    return f"{kind}-{origin}".encode()[:LONGEST_NAME].decode(errors="ignore").rstrip(". ")


def run_slug(name: str) -> str:
    """Return a name as the beginning of a run id."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "run"


def new_run_id(name: str) -> str:
    """Return a new run id from name, time and a random part, e.g. ``demo-20260131-142501-3fa1``."""
    return f"{run_slug(name)}-{datetime.now(tz=UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


async def start_run(
    log: EventLog,
    config: RunConfig,
    run_id: str,
    fork: "Fork | None" = None,
    *,
    replayed_run_id: str | None = None,
    environments: Sequence[EnvironmentUse] = (),
    events: Sequence[Event] = (),
    producer: Producer | None = None,
) -> RunStarted:
    """Record that a run exists, with the checkpoints it takes over from its parent if it is a fork.

    A run that makes no update has no learner to publish its initial policy, so that is recorded here too.

    ``replayed_run_id`` is the run whose steps the new run trains on instead of playing games;
    ``environments`` are those of :func:`~unstable_stream.runs.verdicts.environments_in_use`; ``events`` are
    recorded at once with its start: the steps of a run that imitates, or all of a run that was played
    elsewhere, which has no policy. ``producer`` records all of it, unless a later one has fenced it.

    Raises:
        FencedError: it has; nothing was recorded.
        RunError: the run to fork has just deleted the optimizer state that the new one would begin with.
    """
    if fork is not None and config.learner.iterations > fork.update:
        await asyncio.to_thread(fork.hold_optimizer_state, run_id)
    log_id, start_offsets = await log.log_id(), await present_ends(log)
    event = RunStarted(
        event_id=event_id(run_id, "run-started"),
        run_id=run_id,
        occurred_at_ms=events[0].occurred_at_ms if events else now_ms(),
        name=config.name,
        seed=config.seed,
        config=config.model_dump(mode="json"),
        package_version=__version__,
        parent_run_id=fork.parent_run_id if fork else replayed_run_id,
        parent_update=fork.update if fork else None,
        parent_games=fork.games if fork else 0,
        extensions=code_in_use(config),
        environments=tuple(environments),
        log_id=log_id,
        start_offsets=start_offsets,
    )
    checkpoints = fork.checkpoints_of(run_id, event.occurred_at_ms) if fork else []
    # Else the learner says that it has loaded it, or there is none.
    if not (checkpoints or events or config.learner.iterations):
        checkpoints = [initial_checkpoint(config, run_id, model) for model in config.model_names]
    records = [record_from_event(each) for each in (event, *checkpoints, *events)]
    if producer is None:
        await log.append(records)
    else:
        async with producer.transaction() as transaction:
            await transaction.append(records)
    return event


def initial_checkpoint(
    config: RunConfig, run_id: str, model: str | None = None, probe: AdapterProbe | None = None
) -> Checkpoint:
    """Return the policy that a run begins with: the base model, or ``learner.initial_lora_path``.

    ``model`` is the name of one of several trained models; ``probe`` proves the adapter, if there is one.

    Raises:
        OSError: the adapter's file cannot be read.
        CheckpointError: it is not in the store.
        StoreError: the store refuses, or cannot be reached.
    """
    learner = config.for_model(model).learner
    path = (
        checked_address(learner.initial_lora_path, "initial_lora_path") if learner.initial_lora_path else None
    )
    weights = b""
    if path is not None:
        with opened_checkpoint(path) as directory:
            weights = (directory / WEIGHTS_FILE).read_bytes()
    return Checkpoint(
        event_id=named_id(run_id, "checkpoint", 0, model=model),
        run_id=run_id,
        occurred_at_ms=now_ms(),
        model_uid=checkpoint_uid(0, model),
        iteration=0,
        path=path,
        sha256=None if path is None else hashlib.sha256(weights).hexdigest(),
        size_bytes=len(weights),
        base_model=config.model,
        parameters=learner.parameters,
        lora={} if learner.parameters == "all" else config.lora.model_dump(mode="json"),
        probe=probe,
        model=model,
    )


async def finish_run(
    log: EventLog, run_id: str, outcome: str, reason: str, *, resumption: int | None = None
) -> None:
    """Record the end of a run; ``outcome`` is ``completed``, ``stopped`` or ``failed``.

    ``resumption`` is the number of the resumption that ends, 0 for the start; by default the latest. It
    keeps a launcher from ending the work of another one that has resumed the run meanwhile.

    Raises :class:`RunError` if there is no such run.
    """
    run = (await read_history(log, (RunStarted.TOPIC, LearnerUpdate.TOPIC))).run(run_id)
    finished = RunFinished(
        event_id=event_id(run_id, "run-finished", run.resumptions if resumption is None else resumption),
        run_id=run_id,
        occurred_at_ms=now_ms(),
        outcome=outcome,
        reason=reason,
        updates=run.updates,
    )
    await log.append([record_from_event(finished)])


async def want_engines(log: EventLog, run_id: str, engines: int | None) -> None:
    """Record that a run shall have so many engines from now on; ``None``: as configured.

    Raises:
        RunError: the run is over.
    """
    run = next(run for run in await list_runs(log) if run.run_id == run_id)
    if run.state != "running":
        raise RunError(f"run {run_id} is {run.state}: it has no engines; resume it first")
    asked_ms = now_ms()
    wanted = EnginesWanted(
        event_id=event_id(run_id, "engines-wanted", asked_ms),
        run_id=run_id,
        occurred_at_ms=asked_ms,
        engines=engines,
    )
    await log.append([record_from_event(wanted)])
