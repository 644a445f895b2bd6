"""Ratings and rewards as they would be otherwise: a form, the differences, and a set to keep."""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from unstable_stream.api.config_keys import as_toml, explained
from unstable_stream.api.what_if import (
    SYSTEMS,
    Rerated,
    RewardChange,
    meanings_of,
    rederive_run,
    rerate_run,
    settings_of,
)
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError
from unstable_stream.events.descriptions import plain_text
from unstable_stream.extensions import KINDS, Reference, is_extension
from unstable_stream.extensions.load import load
from unstable_stream.history.hindsight.rederive import Rederived
from unstable_stream.history.hindsight.rerate import Compared
from unstable_stream.runs.config import parse_toml
from unstable_stream.ui.web.pages.narrowing import number
from unstable_stream.ui.web.site import Shelf, Site, page

Page: TypeAlias = Callable[[Site, Shelf, Request], Response]
_STAGES: Final = ("final", "step", "sampling")


_LONGEST_KEPT: Final = 8000
"""Of a field that the address of the form keeps."""


def show(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the forms, with what the address says in their fields."""
    return _forms(site, shelf, request.query_params)


def _forms(site: Site, shelf: Shelf, typed: Mapping[str, str], error: str = "") -> Response:
    """Return the forms, filled in as they were; ``error``: what was wrong with them."""
    runs = shelf.runs()
    wanted = typed.get("run", "")
    run = shelf.run(wanted) if wanted else (runs[0] if runs else None)
    config = _config(shelf, run.run_id) if run else {}
    draws = config.get("model_pool", {}).get("draw_probability", {})
    return page(
        "what_if.html.jinja",
        site,
        shelf,
        status=400 if error else 200,
        error=error,
        typed=typed,
        runs=runs,
        run=run,
        systems={system: settings_of(system, draws) for system in SYSTEMS},
        meanings={system: meanings_of(system) for system in SYSTEMS},
        rewards=_rewards_as_toml(config.get("rewards", {})),
        stages=_stages(),
        kept=_kept(shelf, run.run_id) if run else [],
    )


@cache
def _stages() -> Sequence[tuple[str, str, Sequence[tuple[str, str]]]]:
    """Return each stage, what the configuration says of it, and its transformations with what they do."""
    meanings = {key.path: key.meaning.partition(";")[0].rstrip(".") for key in explained("rewards")}
    return [
        (
            stage,
            meanings[f"rewards.{stage}"],
            [
                (
                    f"{name}{inspect.signature(made)}".partition(" ->")[0],
                    plain_text(" ".join((inspect.getdoc(made) or "").partition("\n\n")[0].split())),
                )
                for name in kind.built_in
                for made in [load(kind, Reference.parse(name))]
            ],
        )
        for stage in _STAGES
        for kind in [KINDS[f"{stage}_transformation"]]
    ]


def _asked(begin: Page) -> Page:
    """Return the page that a form is sent to; one that is wrong is shown again as it was filled in."""

    def answer(site: Site, shelf: Shelf, request: Request) -> Response:
        try:
            return begin(site, shelf, request)
        except ConfigError as error:
            return _forms(site, shelf, request.state.form, str(error))

    return answer


@_asked
def rate(site: Site, shelf: Shelf, request: Request) -> Response:
    """Begin to rate a run's games anew."""
    form: Mapping[str, str] = request.state.form
    run = shelf.run(form.get("run", ""))
    system = form.get("system", "")
    if system not in SYSTEMS:
        raise ConfigError(f"system={system!r}: expected one of {', '.join(SYSTEMS)}")
    settings = {name: number(name, form[name]) for name in SYSTEMS[system] if form.get(name)}
    label = form.get("label", "").strip()
    job = site.jobs.start(
        "ratings",
        f"Ratings of {run.run_id} by {system}",
        lambda job: rerate_run(
            shelf.place,
            run.run_id,
            system=system,
            settings=settings,
            label=label or None,
            replace="replace" in form,
            dry_run=not label,
            on_progress=job.tell,
        ),
        run_id=run.run_id,
        asked=form,
    )
    return RedirectResponse(shelf.href("what-if", job.id), 303)


@_asked
def reward(site: Site, shelf: Shelf, request: Request) -> Response:
    """Begin to shape a run's rewards anew."""
    form: Mapping[str, str] = request.state.form
    run = shelf.run(form.get("run", ""))
    rewards = _transformations(form.get("rewards", ""))
    with shelf.reading() as archive:
        ((trajectories,),) = query(
            archive, "SELECT count(*) FROM trajectories WHERE run_id = $1", [run.run_id]
        ).rows
    label = form.get("label", "").strip()
    job = site.jobs.start(
        "rewards",
        f"Rewards of {run.run_id}",
        lambda job: rederive_run(
            shelf.place,
            run.run_id,
            rewards,
            label=label or None,
            replace="replace" in form,
            dry_run=not label,
            allow_code=[],
            on_progress=lambda done: job.tell(done, max(done, trajectories)),
        ),
        run_id=run.run_id,
        asked=form,
    )
    return RedirectResponse(shelf.href("what-if", job.id), 303)


def watch(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return how far a computation is, or its result."""
    job = site.jobs.find(request.path_params["job"])
    if job is None:
        raise HTTPException(404, "There is no such computation; those of an earlier start are forgotten.")
    result, directory = job.result or (None, None)
    return page(
        "what_if_result.html.jinja",
        site,
        shelf,
        job=job,
        done=job.done.is_set(),
        result=result,
        kept=directory,
        again={name: value for name, value in job.asked.items() if len(value) <= _LONGEST_KEPT},
        slopes=_slopes(result.models) if isinstance(result, Rerated) else (),
        spread=_spread(result.changes) if isinstance(result, Rederived) else None,
    )


# -- pictures ---------------------------------------------------------------------------------------------

_HIGH: Final = 300
"""Of the picture of an environment's ratings."""
_BETWEEN_NAMES: Final = 13
_MARKED: Final = 10


@dataclass(frozen=True, slots=True)
class _Slope:
    """A model's line from the rating that was used, on the left, to the new one."""

    model: Compared
    y_used: float
    y: float
    marked: bool
    """Whether it is one of those that moved by the most places."""
    named: bool
    """Whether there is room for its name."""


def _slopes(models: Sequence[Compared]) -> Sequence[tuple[str, Sequence[_Slope]]]:
    """Return the lines of each environment; each side goes from its lowest to its highest rating."""
    found = []
    for env_id, group in groupby(models, key=lambda each: each.env_id):
        both = [(each, each.mu_used, each.rank_used) for each in group if each.mu_used is not None]
        if not both:
            continue
        used, new = _scale([mu for _, mu, _ in both]), _scale([each.mu for each, _, _ in both])
        by_move = sorted(both, key=lambda it: -abs(it[0].rank - (it[2] or it[0].rank)))
        marked = {each.model_uid for each, _, rank in by_move[:_MARKED] if rank not in (None, each.rank)}
        ends = {pick(both, key=lambda it: it[0].rank)[0].model_uid for pick in (min, max)}
        lines: list[_Slope] = []
        last = -math.inf
        for model, mu_used, _ in sorted(both, key=lambda it: -it[0].mu):
            named = model.model_uid in marked | ends and new(model.mu) - last >= _BETWEEN_NAMES
            last = new(model.mu) if named else last
            lines.append(_Slope(model, used(mu_used), new(model.mu), model.model_uid in marked, named))
        found.append((env_id, sorted(lines, key=lambda line: line.marked)))
    # Of one environment alone, all environments together say the same.
    return found[-1:] if len(found) == 2 else found


def _scale(values: Sequence[float]) -> Callable[[float], float]:
    low, high = min(values), max(values)
    return lambda value: round(_HIGH * (1 - (value - low) / (high - low)) if high > low else _HIGH / 2, 1)


def _spread(changes: Sequence[RewardChange]) -> tuple[float, float]:
    """Return the ends of the scale that all differences share; zero is within."""
    low = min([0.0, *(each.lowest for each in changes)])
    high = max([0.0, *(each.highest for each in changes)])
    return low, high if high > low else low + 1.0


def _transformations(text: str) -> Mapping[str, object]:
    """Read stages of transformations, all of this package: a page must not load other code."""
    stages = parse_toml(text, "the transformations")
    for stage, specs in stages.items():
        if stage not in _STAGES or not isinstance(specs, list):
            raise ConfigError(f"{stage}: expected lists named {', '.join(_STAGES)}")
        for spec in specs:
            name = spec.get("type") if isinstance(spec, dict) else spec
            kind = KINDS[f"{stage}_transformation"]
            if not isinstance(name, str) or is_extension(kind, Reference.parse(name)):
                raise ConfigError(
                    f"{stage}: {name!r} is code of your own, which these pages do not load; use "
                    "unstable-stream rederive"
                )
    return stages


def _config(shelf: Shelf, run_id: str) -> Mapping[str, Any]:
    """Return what a run recorded, whatever version wrote it. ``Any``: JSON."""
    ((config,),) = query(shelf.archive, "SELECT config FROM runs WHERE run_id = $1", [run_id]).rows
    found: Mapping[str, Any] = json.loads(config or "{}")
    return found


def _rewards_as_toml(rewards: Mapping[str, Any]) -> str:
    """Return the transformations that a run used, to begin from. ``Any``: JSON."""
    lines = []
    for stage in _STAGES:
        specs = ",".join(f"\n    {as_toml(spec)}" for spec in rewards.get(stage, []))
        lines.append(f"{stage} = [{specs}{chr(10) if specs else ''}]")
    return "\n".join(lines)


def _kept(shelf: Shelf, run_id: str) -> list[str]:
    directory = shelf.place.data.what_if(run_id)
    return (
        sorted(path.name for path in directory.iterdir() if path.name[0] != ".") if directory.is_dir() else []
    )
