"""A run goes on as the same run: the settings that it keeps, and the record of it.

The state of each part comes back from the log; ``docs/how-to/resume.md`` names the module of each. A run can
never change the settings that its recorded steps, ratings, batches and games depend on: the derived events
before and after the change would follow from different configurations, and they could not be recomputed.
Who plays next is free to change: every game is recorded with its players before it is played.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

from unstable_stream.errors import ConfigError, RunError, StoreError
from unstable_stream.events import EnvironmentUse, LearnerUpdate, RunResumed, RunStarted, event_id, now_ms
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.records import record_from_event
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE
from unstable_stream.log.stores.checkpoint_files import sha256_of
from unstable_stream.runs.base_model import keeps_base_model
from unstable_stream.runs.code import code_in_use
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import RunStatus, read_history
from unstable_stream.version import __version__

_KEPT: Final = (
    "model_revisions",
    "model_fingerprint",
    "lora",
    "learner.parameters",
    "seed",
    "imitation",
    "rewards",
    "model_pool.fixed",  # games that are played again name them
    "model_pool.rating_system",
    "model_pool.draw_probability",
    "buffer",
    "learner.batch_size",  # the size of a batch, and by default of the buffer
    "learner.max_train_len",  # these decide on drops
    "algorithm.truncated_turns",
    "collector.filter_opponent_invalid",
    "collector.max_turns",  # these decide on the end of a game
    "collector.invalid_moves_allowed",
    "collector.branches",  # these decide on the positions that are still to be played on from
    "collector.branch_share",
    "collector.branch_at",
)


def check_resumable(begun: RunConfig, config: RunConfig) -> None:
    """Refuse to resume a run if settings have changed that its derived events depend on.

    The base model, and the adapter that a model began with, may be at another place, with the same weights.

    Raises:
        ConfigError: a setting has changed; the message names each such key, with both values.
    """
    before, after = begun.model_dump(mode="json"), config.model_dump(mode="json")
    changed = [] if keeps_base_model(begun, config) else [*_changes("model", begun.model, config.model)]
    changed += [
        change for name in _KEPT for change in _changes(name, value_at(before, name), value_at(after, name))
    ]
    for model in begun.model_names:
        if model in config.model_names:
            key = "learner" if model is None else f"trained_models.{model}"
            changed += _changed_start(f"{key}.initial_lora_path", begun, config, model)
    changed += _changes("trained_models", begun.seats_by_model, config.seats_by_model)
    if changed:
        raise ConfigError(
            "a run keeps what its steps, ratings and batches follow from; this would change "
            f"{'; '.join(changed)}. Leave it, or take it into a new run that begins here with: "
            "unstable-stream fork RUN --set KEY=VALUE"
        )


def _changed_start(name: str, begun: RunConfig, config: RunConfig, model: str | None) -> Iterator[str]:
    before = begun.for_model(model).learner.initial_lora_path
    after = config.for_model(model).learner.initial_lora_path
    if before == after:
        return
    weights = _weights(name, before)
    if before is not None and weights is None:
        return  # it is there no more: the learner compares with the digest that the run recorded
    if weights is None or weights != _weights(name, after):
        yield f"{name} from {_shown(before)} to {_shown(after)}"


def _weights(name: str, location: str | None) -> str | None:
    """Return the digest of an adapter; ``None``: there is none."""
    try:
        return None if location is None else sha256_of(location, WEIGHTS_FILE)
    except StoreError as error:
        raise ConfigError(f"{name}: {error}") from error


def check_plays(began: RunStarted) -> None:
    """Refuse to resume a run that plays no games.

    Raises:
        RunError: it trains on replayed steps; says what to do instead.
    """
    if began.replays:
        raise RunError(
            f"run {began.run_id} trains on the replayed steps of another run and plays no games: begin one "
            f"with games from its checkpoint, unstable-stream fork {began.run_id}"
        )


def check_unfinished(run: RunStatus, config: RunConfig) -> None:
    """Refuse to resume a run that is completed, unless it is to make more updates now, or plays no games.

    Raises:
        RunError: it has nothing left to do; says how it can go on.
    """
    if run.began is not None:
        check_plays(run.began)
    done = run.config().learner.iterations
    if run.state != "completed" or config.learner.iterations > done:
        return
    if not done:
        raise RunError(f"run {run.run_id} is completed: it has played all of its games")
    raise RunError(
        f"run {run.run_id} is completed: it has made its {done} updates. To go on, give it more of them: "
        f"--set learner.iterations=N with N above {done}"
    )


class RecordedConfigs:
    """The configurations that a run has had, one for each of its starts: an update was made with one of them.

    Which one, the update says itself. Of updates of earlier versions it follows from the times.
    """

    def __init__(self, starts: Mapping[int, RunStatus]) -> None:
        """Use :meth:`read`; ``starts``: the run as it was at each start, by number, 0 is the first."""
        self._starts = dict(sorted(starts.items()))

    @classmethod
    async def read(cls, log: EventLog, run_id: str) -> Self:
        """Read the starts of a run; there are none if the run is not recorded."""
        began: RunStarted | None = None
        resumed: dict[int, RunResumed] = {}
        async for _, event in events_to_end(log, (RunStarted.TOPIC,), run_id=run_id):
            if event.run_id == run_id and isinstance(event, RunStarted):
                began = began or event
            elif event.run_id == run_id and isinstance(event, RunResumed):
                resumed.setdefault(event.resumption, event)
        if began is None:
            return cls({})
        later = {number: RunStatus(run_id, began, event) for number, event in resumed.items()}
        return cls({0: RunStatus(run_id, began), **later})

    def number_of(self, config: RunConfig, model: str | None) -> int | None:
        """Return the newest start with this configuration of a trained model; ``None``: there is none."""
        wanted = config.model_dump(mode="json", exclude={"log"})  # a service may reach it by another address
        for number, start in reversed(self._starts.items()):
            if start.config().for_model(model).model_dump(mode="json", exclude={"log"}) == wanted:
                return number
        return None

    def of(self, update: LearnerUpdate) -> RunConfig | None:
        """Return the configuration that an update was made with; ``None``: the run is not recorded.

        Raises:
            RunError: the update names a start that is not in the log.
            ConfigError: this version of the package does not accept the configuration.
        """
        if not self._starts:
            return None
        number = update.resumption
        if number is None:
            before = [
                number
                for number, start in self._starts.items()
                if start.resumed is not None and start.resumed.occurred_at_ms <= update.occurred_at_ms
            ]
            number = max(before, default=0)
        if number not in self._starts:
            raise RunError(
                f"run {update.run_id}: update {update.update} was made after resumption {number}, and "
                f"topic {RunResumed.TOPIC} does not have it: the log has lost it, restore it from a backup"
            )
        return self._starts[number].config().for_model(update.model)


async def resume_run(
    log: EventLog, run_id: str, config: RunConfig, environments: Sequence[EnvironmentUse] = ()
) -> RunResumed:
    """Record that a run is resumed; raises :class:`RunError` if there is no such run."""
    run = (await read_history(log)).run(run_id)
    recorded = run.settings.get("model_fingerprint")
    if recorded and config.model_fingerprint != recorded:  # it was started and resumed by one script
        raise ConfigError(
            f"model = {config.model!r} has changed since run {run_id} began with it: put it back as it was"
        )
    resumption = run.resumptions + 1
    event = RunResumed(
        event_id=event_id(run_id, "run-resumed", resumption),
        run_id=run_id,
        occurred_at_ms=now_ms(),
        resumption=resumption,
        config=config.model_dump(mode="json"),
        package_version=__version__,
        extensions=code_in_use(config),
        environments=tuple(environments),
    )
    await log.append([record_from_event(event)])
    return event


def value_at(tree: Any, name: str) -> Any:
    """Return the value of a key such as ``learner.batch_size`` in a configuration as it is recorded."""
    for part in name.split("."):
        tree = tree.get(part)  # an extension in place of a built-in has no such key
        if tree is None:
            break
    return tree


def _changes(name: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from _changes(f"{name}.{key}", before.get(key), after.get(key))
    elif before != after:
        yield f"{name} from {_shown(before)} to {_shown(after)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
