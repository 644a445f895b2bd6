"""Ratings and rewards as they would be otherwise: a form, the differences, and a set to keep."""

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from unstable_stream.api.config_keys import as_toml
from unstable_stream.api.what_if import SYSTEMS, rederive_run, rerate_run, settings_of
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import KINDS, Reference, is_extension
from unstable_stream.runs.config import parse_toml
from unstable_stream.ui.web.site import Job, Shelf, Site, page

_STAGES: Final = ("final", "step", "sampling")


def show(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the forms."""
    runs = shelf.runs()
    wanted = request.query_params.get("run", "")
    run = shelf.run(wanted) if wanted else (runs[0] if runs else None)
    config = _config(shelf, run.run_id) if run else {}
    draws = config.get("model_pool", {}).get("draw_probability", {})
    return page(
        "what_if.html.jinja",
        site,
        shelf,
        runs=runs,
        run=run,
        systems={system: settings_of(system, draws) for system in SYSTEMS},
        rewards=_rewards_as_toml(config.get("rewards", {})),
        built_in={stage: sorted(KINDS[f"{stage}_transformation"].built_in) for stage in _STAGES},
        kept=_kept(shelf, run.run_id) if run else [],
    )


def rate(site: Site, shelf: Shelf, request: Request) -> Response:
    """Begin to rate a run's games anew."""
    form: Mapping[str, str] = request.state.form
    run = shelf.run(form.get("run", ""))
    system = form.get("system", "")
    if system not in SYSTEMS:
        raise ConfigError(f"system={system!r}: expected one of {', '.join(SYSTEMS)}")
    settings = {name: _number(name, form[name]) for name in SYSTEMS[system] if form.get(name)}
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
            on_progress=lambda done, of: _tell(job, done, of),
        ),
        run_id=run.run_id,
    )
    return RedirectResponse(shelf.href("what-if", job.id), 303)


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
            on_progress=lambda done: _tell(job, done, max(done, trajectories)),
        ),
        run_id=run.run_id,
    )
    return RedirectResponse(shelf.href("what-if", job.id), 303)


def _tell(job: Job, done: int, of: int) -> None:
    job.done_of = (done, of)


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
    )


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}: expected a number") from None


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
