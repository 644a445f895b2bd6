"""Learners with other settings, fed the history of one run, and compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unstable_stream.api.loops import wait_for
from unstable_stream.api.place import PlacedRun, placed
from unstable_stream.api.replaying import ReplaySource, opened_source
from unstable_stream.api.settings import settings_tree
from unstable_stream.archive.what_if import open_set, set_directory
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import confined
from unstable_stream.history.hindsight.comparison import RECORDED, Comparison, FedUpdate, LearnerRow, Pair
from unstable_stream.history.hindsight.learn_again import TrainingRecord, learn_again, variant_config
from unstable_stream.history.hindsight.offline import find_recorded_run
from unstable_stream.history.views.report.page import write_comparison
from unstable_stream.history.views.written import config_differences
from unstable_stream.runs.config import RunConfig, parse_config, read_toml
from unstable_stream.runs.overlay import as_recorded

__all__ = ["FedUpdate", "Learned", "LearnerRow", "Pair", "learn"]


@dataclass(frozen=True)
class Learned(Comparison):
    """The result of :func:`learn`."""

    run_id: str
    directory: Path | None
    """The place of ``about.json`` and ``updates.parquet``; ``None``: nothing was stored."""

    def write_html(self, output: Path | str) -> int:
        """Write the curves as one HTML file; return its size in bytes.

        Raises:
            ReportError: the file cannot be written, or Jinja is not installed.
        """
        says = f"Learners that were fed the steps of {self.run_id} as its updates drew them."
        title = f"Learners on {self.run_id}"
        return write_comparison(Path(output), title, says, self.sections(), self.told())


def learn(
    run: str | PlacedRun,
    configs: "Mapping[str, Path | str | Mapping[str, Any]] | Sequence[Path | str]" = (),
    *,
    updates: int | None = None,
    model: str | None = None,
    overrides: Sequence[str] = (),
    label: str | None = None,
    replace: bool = False,
    dry_run: bool = False,
    source: ReplaySource = "log",
    data: Path | str | None = None,
    log: str | None = None,
    allow_code: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> Learned:
    """Train learners on the steps that a run trained on, and compare them update by update.

    Nothing is played, and the run may be going on: the updates that it has made are fed. A learner begins as
    the run began, with the run's configuration but for what its own says. The same again gives the same
    bytes.

    Args:
        run: a run, its id or the beginning of it.
        configs: TOML files with the differences, named by their file names; or names with such files, or with
            keyword arguments as for :func:`build`. None: one learner with the run's own configuration.
        updates: feed only the first of the run's updates.
        model: name of the trained model, if the run trains several.
        overrides: ``key.path=value``, for all of them.
        label: name of the stored set; by default the names of the learners.
        replace: replace the set of that label.
        dry_run: store nothing.
        source: ``log``, with what expired in it from the archive, or only the ``archive``.
        data: as for :func:`build`.
        log: as for :func:`build`.
        allow_code: as for :meth:`Run.resume`.
        progress: called with a learner's name, the updates that it has made, and their number.

    Raises:
        ConfigError: a configuration that cannot be, or changes what is recorded; or two have one name.
        RunError: no such run, or its steps are gone.
        LearnerError: a learner cannot be made here; says why.
    """
    place, wanted = placed(run, data, log)
    named = _named(configs)

    async def work() -> Learned:
        async with opened_source(place, source, None) as (history, _):
            found = await find_recorded_run(history, wanted, place.dropped())
            run_id, settings = found.run_id, found.settings
            begun = parse_config(as_recorded(settings))
            _check_model(begun, model)
            made: dict[str, RunConfig] = {}
            for name, given in named.items():
                if isinstance(given, Mapping):
                    changes = settings_tree(given, begun.model)
                else:
                    changes = read_toml(Path(given))
                made[name] = variant_config(settings, changes, overrides, model, name)
            allowed = None
            if allow_code is not None:
                known = (place.allowed_code(run_id, allow_code, each, begun) or [] for each in made.values())
                allowed = [pattern for patterns in known for pattern in patterns]
            title = label or "-".join(("learn", *named))
            directory = None if dry_run else set_directory(place.data.what_if(run_id), title)
            record = await TrainingRecord.read(history, run_id, model, updates)
            fed, ended = {RECORDED: record.fed()}, dict[str, str]()
            with confined(allowed), open_set(directory, replace=replace or label is None) as out:
                for name, config in made.items():
                    fed[name], reason = await learn_again(
                        history, record, name, config, located=place.data.located, progress=progress
                    )
                    ended |= {name: reason} if reason else {}
                learned = Learned(fed, ended, run_id, directory)
                trees = [each.model_dump(mode="json") for each in (begun, *made.values())]
                told = dict(config_differences(trees))
                out.about |= {"kind": "learn", "run_id": run_id, "differences": told}
                learned.write(out)
            return learned

    return wait_for(work())


def _check_model(begun: RunConfig, model: str | None) -> None:
    if model not in begun.model_names:
        names = ", ".join(name for name in begun.model_names if name is not None)
        said = f"the run trains {names}: name one of them" if names else "the run trains one, without a name"
        raise ConfigError(f"model {model!r}: {said}")


def _named(
    configs: "Mapping[str, Path | str | Mapping[str, Any]] | Sequence[Path | str]",
) -> "dict[str, Path | str | Mapping[str, Any]]":
    if isinstance(configs, Mapping):
        named = dict(configs)
    else:
        named = {Path(path).stem: path for path in configs}
        if len(named) < len(configs):
            raise ConfigError(f"two of {', '.join(map(str, configs))} have one name: name the files apart")
    if RECORDED in named:
        raise ConfigError(f"{RECORDED} is the run itself: name the configuration otherwise")
    return named or {"again": {}}
