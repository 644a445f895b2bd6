"""Evaluate a policy: a run that trains nothing and plays games on fixed seeds against chosen opponents.

A checkpoint is evaluated by a fork of its run at that update, a model by a run of its own. Both are runs like
all others: recorded, rated, archived, to be audited and verified. A checkpoint of any run of the place may be
an opponent; it has to be an adapter of the same base model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from unstable_stream.api.build import build, check
from unstable_stream.api.checkpoints import (
    CheckpointName,
    as_opponent,
    find_checkpoint,
    find_policy,
    split_name,
)
from unstable_stream.api.disguising import with_disguises
from unstable_stream.api.place import Place, placed
from unstable_stream.api.run import Run
from unstable_stream.api.settings import make_config
from unstable_stream.api.shorthand import environments, opponents
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import confined
from unstable_stream.runs.base_model import ModelIdentity
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.fork import Fork, check_fork
from unstable_stream.runs.recording import derived_name
from unstable_stream.runs.sections import ImitationConfig

if TYPE_CHECKING:
    from unstable_stream.services.launch.launcher import Backend

_ALONE: Final[Mapping[str, object]] = {
    "consumers": (),
    "trackers": (),
    "external": (),
    "metrics_port": None,
    "model_pool.fixed": (),
    "model_pool.sample_mode": "mirror",
}
"""Settings of a run that trains nothing, without what goes beside the run that it is made of."""

_IN_FLIGHT: Final = 64
"""Games at once; more than the 4 or 16 of a run that also trains."""


class EvaluationOptions(TypedDict, total=False):
    """The options that :func:`evaluation` and :func:`tournament` share."""

    games: int
    """The number of games, by default 100."""
    envs: object
    """The environments, as in :func:`build`."""
    seed: int
    """The seed of the games, by default 0."""
    votes: int
    """Answers to each turn, of which the action of most is played."""
    best_of: int
    """Answers to each turn, of which the most probable per token is played."""
    data: Path | str | None
    """The data directory."""
    log: str | None
    """The event log; ``None``: ``local``."""
    backend: "Backend | None"
    """The place of the processes, by default ``inline``; ``None``: as configured."""
    overrides: Sequence[str]
    """``key.path=value`` as on a command line."""
    allow_code: Sequence[str] | None
    """As in :meth:`Run.resume`."""


def evaluation(
    policy: "str | Run", against: object, *, disguises: int = 0, **options: Unpack[EvaluationOptions]
) -> Run:
    """Return a run that evaluates a policy, not started: :meth:`Run.start` it.

    Args:
        policy: ``RUN@UPDATE``, a checkpoint; ``RUN``, the newest one; of a run that trains several models,
            ``RUN@MODEL/UPDATE`` and ``RUN@MODEL``; or a model: a directory, a Hugging Face id, or
            ``tiny-player``.
        against: one opponent or several: ``RUN@UPDATE``, or as in :func:`build`.
        disguises: the same games are played again, each in one of so many disguises of its environment; then
            :func:`disguise_effects`. A template that reads boards gets those of the board alone.
        options: any of these, by name.
        games: games for each environment and opponent, by default 100; seats are taken in turn.
        envs: the environments, as in :func:`build`; ``None``: those of the run's evaluation. A model needs
            some.
        seed: 0 by default; the same seed plays the same games, whatever the policy.
        votes: the policy answers each turn so often, and plays the action of most answers; 1 by default.
        best_of: the same, but it plays the answer that is the most probable per token; not with ``votes``.
        data: the data directory.
        log: the event log; ``None``: ``local``.
        backend: as in :func:`build`, by default ``inline``.
        overrides: ``key.path=value`` as on a command line.
        allow_code: as in :meth:`Run.resume`.

    Raises:
        RunError: no such run or checkpoint.
        ConfigError: another base model, an unknown opponent, or a model without environments.
    """
    place, policy = placed(policy, options.get("data"), options.get("log"))
    if options.get("games", 1) < 1:
        raise ConfigError(f"games={options['games']}: expected at least 1")
    found = find_policy(place, policy)
    named = [against] if isinstance(against, str | Mapping | Run) or callable(against) else against
    if not isinstance(named, Sequence) or not named:
        raise ConfigError("against: expected at least one opponent, e.g. random-legal or RUN@10")
    model = found[1].model if found else policy
    own = ModelIdentity.of_run(found[1]) if found else ModelIdentity.of_model(policy)
    met = [each for given in named for each in _opponent(place, given, own)]
    settings = match_settings(place, met, options) | {
        "name": derived_name("eval", found[1].name if found else Path(model).name),
        "learner.iterations": found[0].update if found else 0,
    }
    overrides = options.get("overrides", ())
    if disguises:
        recorded_envs = [env.model_dump() for env in found[1].evaluated_envs] if found else []
        envs = environments(options.get("envs") or recorded_envs, model)
        options["envs"] = with_disguises(envs, disguises)
    if found is None:
        if options.get("envs") is None:
            raise ConfigError(
                f"{policy} is a model, which needs environments: envs=…, on the command line --env ENV"
            )
        return build(
            model=model, train_envs=options["envs"], data=place.root, overrides=overrides, **settings
        )
    fork, recorded = found
    return checked_run(place, fork.parent_run_id, recorded, settings, options, fork)


def match_settings(
    place: Place, opponents: Sequence[Mapping[str, Any]], options: EvaluationOptions
) -> dict[str, Any]:
    """Return the settings of a run that plays games on fixed seeds and trains nothing."""
    games, backend = options.get("games", 100), options.get("backend", "inline")
    return {
        "evaluation": {"opponents": opponents, "max_eval_games_per_ckpt": games, "first_last_games": games},
        "evaluation.seed": options.get("seed", 0),
        "evaluation.votes": options.get("votes", 1),
        "evaluation.best_of": options.get("best_of", 1),
        "collector.num_eval_workers": _IN_FLIGHT,
        "learner.num_learners": 1,
        "log": place.log,
    } | ({} if backend is None else {"backend": backend})


def alone(recorded: RunConfig) -> dict[str, object]:
    """Return :data:`_ALONE`, and that nothing is imitated, for a run that is made of a recorded one."""
    settings = {**_ALONE, "imitation": ImitationConfig().model_dump()}
    return settings | ({"algorithm": "reinforce"} if recorded.imitation.pairs else {})


def checked_run(
    place: Place,
    run_id: str,
    recorded: RunConfig,
    settings: Mapping[str, Any],
    options: EvaluationOptions,
    fork: Fork | None = None,
) -> Run:
    """Return a run with a recorded one's configuration but for ``settings``, without what goes beside it."""
    changes = {**alone(recorded), **settings}
    if options.get("envs") is not None:
        changes["eval_envs"] = options["envs"]
    changed = make_config(changes, recorded, options.get("overrides", ()))
    if fork is not None:
        check_fork(fork, recorded, changed, to_train=False)
    allowed = place.allowed_code(run_id, options.get("allow_code"), changed, recorded)
    with confined(allowed):
        check(changed)
    return Run(changed, place, fork=fork, allowed=allowed)


def _opponent(place: Place, given: object, own: ModelIdentity) -> list[dict[str, Any]]:
    """Return the configuration of an opponent; that of a checkpoint is its adapter.

    ``own`` is the base model of the policy.
    """
    if isinstance(given, Run):
        place, given = given.place, f"{given.id}@"
    if not isinstance(given, str) or "@" not in given:
        return opponents(given)
    named = CheckpointName(given[:-1]) if given.endswith("@") else split_name(given)
    fork, config = find_checkpoint(place, *named)
    base = ModelIdentity.of_run(config)
    if not base.matches(own):
        raise ConfigError(
            f"opponent {given}: its base model is {base}, that of the policy is {own}; one engine plays "
            "adapters of one base model"
        )
    return [as_opponent(fork)]
