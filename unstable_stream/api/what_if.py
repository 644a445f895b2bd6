"""Ratings and rewards of a recorded run as they would be otherwise."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from unstable_stream.api.place import Place
from unstable_stream.api.settings import reward_stage
from unstable_stream.archive.what_if import open_set, set_directory
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events.descriptions import field_description, plain_text
from unstable_stream.extensions import Reference, confined
from unstable_stream.history.hindsight.rederive import Rederived, RewardChange, load_rewards, rederive
from unstable_stream.history.hindsight.rerate import (
    Rerated,
    Scopes,
    archived_config,
    rerate_from_archive,
    rerate_from_log,
)
from unstable_stream.log.port import EventLog
from unstable_stream.model_pool import TrueSkill
from unstable_stream.model_pool.systems import Elo, OpenSkill, RatingSystem, build_rating_system
from unstable_stream.runs.config import RewardConfig, RunConfig
from unstable_stream.runs.history import find_run

__all__ = [
    "SYSTEMS",
    "Rerated",
    "RewardChange",
    "Source",
    "meanings_of",
    "rederive_run",
    "rerate_run",
    "settings_of",
]

Source: TypeAlias = Literal["archive", "log"]

SYSTEMS: Final[Mapping[str, Sequence[str]]] = {
    "trueskill": ("mu", "sigma", "beta", "tau", "draw_probability", "inherited_sigma"),
    "elo": ("mu", "k"),
    "openskill": ("mu", "sigma", "beta", "tau", "inherited_sigma"),
}
"""The rating systems of this package, and what can be set of each."""


def rerate_run(
    place: Place,
    run: str,
    *,
    system: str = "trueskill",
    settings: Mapping[str, float] | None = None,
    per_env: bool = False,
    overall: bool = False,
    label: str | None = None,
    replace: bool = False,
    dry_run: bool = False,
    source: str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[Rerated, Path | None]:
    """Rate a run's games anew; return the ratings and where they were stored.

    Args:
        place: where the run is.
        run: id or prefix.
        system: ``trueskill``, ``elo``, ``openskill``, or a reference to an extension.
        settings: the system's parameters; those not given are the run's own.
        per_env: only within each environment.
        overall: only over all environments together.
        label: name of the stored set; by default the system and its settings.
        replace: replace the set of that label.
        dry_run: store nothing.
        source: where outcomes are read; ``None``: the archive if it knows the run.
        on_progress: told how many games are rated, and of how many; from the archive only.

    Raises:
        ConfigError: a setting that means nothing to the system.
        RunError: no such run.
    """
    given = dict(settings or {})
    _check_settings(system, given)
    scopes = Scopes(per_env=per_env or not overall, overall=overall or not per_env)
    found, run_id, config = _find(place, run, source)
    title = Reference.parse(system).target.rpartition(":")[2]
    name = label or "-".join([title, *(f"{key}={value:g}" for key, value in given.items())])
    directory = None if dry_run else set_directory(place.data.what_if(run_id), name)
    rater = _system(system, given, config)
    with open_set(directory, replace=replace or label is None) as out:
        if found == "archive":
            return rerate_from_archive(place.archive, run_id, rater, scopes, out, on_progress), directory
        rated = place.ask_history(lambda log: rerate_from_log(log, run_id, rater, scopes, out))
        return rated, directory


_CLASSES: Final[Mapping[str, type[Elo | OpenSkill | TrueSkill]]] = {
    "elo": Elo,
    "openskill": OpenSkill,
    "trueskill": TrueSkill,
}


def meanings_of(system: str) -> dict[str, str]:
    """Return what each parameter of a system of :data:`SYSTEMS` means."""
    of = _CLASSES[system]
    return {name: plain_text(field_description(of, name)) for name in SYSTEMS[system]}


def settings_of(system: str, draw_probability: Mapping[str, float]) -> dict[str, str]:
    """Return what each parameter of a system of :data:`SYSTEMS` is where it is not given, as text.

    Args:
        system: its name.
        draw_probability: the run's own, by environment.
    """
    usual = _CLASSES[system]()
    found = {name: getattr(usual, name) for name in SYSTEMS[system] if name != "draw_probability"}
    if isinstance(usual, TrueSkill):
        draws = sorted({*draw_probability.values()} or {usual.default_draw_probability})
        found["draw_probability"] = draws[0] if len(draws) == 1 else "by environment"
    return {
        name: value if isinstance(value := found[name], str) else f"{value:.6g}" for name in SYSTEMS[system]
    }


def _check_settings(system: str, settings: Mapping[str, float]) -> None:
    if system not in SYSTEMS:
        if settings:
            raise ConfigError(
                f"--{next(iter(settings)).replace('_', '-')}: an extension takes its arguments in --system, "
                f"e.g. --system '{system}(start=3)'"
            )
        return
    known = SYSTEMS[system]
    for name in settings:
        if name not in known:
            options = ", ".join(f"--{each}".replace("_", "-") for each in known)
            raise ConfigError(f"--{name.replace('_', '-')} means nothing to {system}; it has {options}")


def _system(system: str, settings: Mapping[str, float], config: RunConfig) -> RatingSystem:
    if system == "elo":
        return Elo(**settings)
    if system == "openskill":
        return OpenSkill(**settings)
    if system != "trueskill":
        return build_rating_system(system, "--system")
    given: dict[str, Any] = dict(settings)
    for_all = given.pop("draw_probability", None)
    if for_all is None:
        given["draw_probability"] = config.model_pool.draw_probability
    else:
        given["default_draw_probability"] = for_all
    return TrueSkill(**given)


def _find(place: Place, run: str, source: str | None) -> tuple[Source, str, RunConfig]:
    """Return where the run is, its full id and its configuration."""
    if source == "archive" or (source is None and place.has_archive):
        try:
            return "archive", *archived_config(place.archive, run)
        except RunError:
            if source == "archive":
                raise

    dropped = place.dropped()
    return "log", *place.ask_history(lambda log: find_run(log, run, dropped))


def rederive_run(
    place: Place,
    run: str,
    rewards: Path | str | Mapping[str, object],
    *,
    label: str | None = None,
    replace: bool = False,
    dry_run: bool = False,
    allow_code: Sequence[str] | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> tuple[Rederived, Path | None]:
    """Shape a run's rewards anew; return how they differ from those used, and where they were stored.

    Args:
        place: where the run is.
        run: id or prefix.
        rewards: a TOML file with a ``[rewards]`` table, or its stages (``final``, ``step``, ``sampling``) as
            a mapping of transformations. Stages not given stay as they were.
        label: name of the stored set; by default the file's name, or ``rederived``.
        replace: replace the set of that label.
        dry_run: store nothing.
        allow_code: load only the run's own code and what fits these patterns; ``None``: load all.
        on_progress: told now and then how many trajectories are done.

    Raises:
        RunError: no such run.
        ConfigError: transformations that cannot be made.
    """

    async def shape(log: EventLog) -> tuple[Rederived, Path | None]:
        run_id, config = await find_run(log, run, place.dropped())
        new = _rewards(rewards, config)
        asked = config.model_copy(update={"rewards": new})
        allowed = place.allowed_code(run_id, allow_code, asked, config)
        name = label or (Path(rewards).stem if isinstance(rewards, str | Path) else "rederived")
        directory = None if dry_run else set_directory(place.data.what_if(run_id), name)
        stored = open_set(directory, replace=replace or label is None)
        with confined(allowed), stored as out:
            return await rederive(log, run_id, config, new, out, on_progress), directory

    return place.ask_history(shape)


def _rewards(given: Path | str | Mapping[str, object], config: RunConfig) -> RewardConfig:
    if isinstance(given, str | Path):
        return load_rewards(Path(given), config)
    stages = {stage: reward_stage(stage, each) for stage, each in given.items()}
    unknown = sorted(stages.keys() - RewardConfig.model_fields.keys())
    if unknown:
        raise ConfigError(f"rewards: unknown stage {', '.join(unknown)}; expected final, step, sampling")
    return RewardConfig.model_validate(config.rewards.model_dump(mode="json") | stages)
