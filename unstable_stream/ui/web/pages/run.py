"""Runs, live: all in a list; one with results, curves, ladder, payoff matrix, health and alerts; and several
beside each other with curves in the same plots, configurations and forks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from unstable_stream.api import topics
from unstable_stream.archive import query
from unstable_stream.errors import EventLogError
from unstable_stream.history.views.report.over_seeds import seeds_results
from unstable_stream.history.views.report.reading import before_and_after
from unstable_stream.history.views.run_list import RunLine
from unstable_stream.history.views.written import config_differences, config_text
from unstable_stream.services.launch.supervisor import LAUNCHER_LOG
from unstable_stream.services.tracking.lag import run_of_group
from unstable_stream.ui.web import charts
from unstable_stream.ui.web.charts import AXES
from unstable_stream.ui.web.site import Shelf, Site, page

_DEATHS: Final = 5
_SERVICES: Final = """
    SELECT split_part(name, '/', 2) AS service,
        arg_max(value, occurred_at) FILTER (name LIKE '%/up') = 1 AS up,
        arg_max(value, occurred_at) FILTER (name LIKE '%/restarts')::BIGINT AS restarts,
        max(occurred_at) AS heard
    FROM metrics WHERE run_id = $run AND source = 'launcher' AND starts_with(name, 'services/')
    GROUP BY service ORDER BY service
"""
# A plug-in's alert is a metric: it stands until the plug-in takes it back with a zero.
_RAISED: Final = """
    SELECT source, name[8:] AS alert, arg_max(value, (occurred_at, record_number)) AS value,
        max(occurred_at) AS heard
    FROM metrics WHERE run_id = $run AND starts_with(name, 'alerts/')
    GROUP BY source, name HAVING value <> 0 ORDER BY heard DESC, source, alert LIMIT 20
"""


@dataclass(frozen=True, slots=True)
class _Lag:
    """A consumer group, all its partitions together."""

    group: str
    records: int
    topics: Sequence[str]
    """Those it is behind on."""


def show(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page."""
    run = shelf.run(request.path_params["run"])
    (facts,) = charts.summaries(shelf, [run.run_id])
    with shelf.reading() as archive:
        services = query(archive, _SERVICES, {"run": run.run_id}).dicts()
        raised = query(archive, _RAISED, {"run": run.run_id}).dicts()
    return page(
        "run.html.jinja",
        site,
        shelf,
        run=run,
        facts=facts,
        services=services,
        raised=raised,
        config=config_text(facts.config),
        axis=request.query_params.get("by", "update"),
        axes=AXES,
    )


def results(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the part of the page about what its policies won before and after."""
    (facts,) = charts.results(shelf, [request.path_params["run"]])
    return page("results.html.jinja", site, shelf, changes=before_and_after(facts))


def curves(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the numbers of all charts of one run or several."""
    asked = request.query_params.getlist("run")
    runs = charts.read(shelf, list(dict.fromkeys(asked)))
    return charts.answer(runs, request.query_params.get("by", "update"))


def health(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the part of the page about consumers and service logs, which the archive does not know."""
    run = shelf.run(request.path_params["run"])
    lags: list[_Lag] = []
    silent = None
    try:
        (found,) = topics.lags(shelf.place, everyone=True)
    except EventLogError as error:
        found, silent = (), str(error)
    for group in dict.fromkeys(lag.group for lag in found):
        if run_of_group(group) in (None, run.run_id):
            own = [lag for lag in found if lag.group == group]
            behind = sorted({lag.at.topic for lag in own if lag.lag})
            lags.append(_Lag(group, sum(lag.lag for lag in own), behind))
    return page("health.html.jinja", site, shelf, lags=lags, silent=silent, errors=_errors(shelf, run.run_id))


def _errors(shelf: Shelf, run_id: str) -> list[tuple[str, str]]:
    """Return when processes of a run that was started here died lately, and of what."""
    notes = shelf.place.data.service_logs(run_id) / LAUNCHER_LOG
    if not notes.exists():
        return []
    moments = [line.partition(" ") for line in notes.read_text(encoding="utf-8").splitlines()]
    return [(moment, note) for moment, _, note in moments[-_DEATHS:]]


def show_all(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page."""
    return page(
        "runs.html.jinja", site, shelf, runs=shelf.runs(), sweeps=shelf.sweeps(), dropped=shelf.dropped()
    )


def compare(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page; without runs in its address, one to choose them on."""
    asked = request.query_params.getlist("run")
    for name in request.query_params.getlist("sweep"):
        asked += shelf.sweeps().get(name, [])
    wanted = list(dict.fromkeys(asked))
    facts = charts.results(shelf, wanted)
    return page(
        "compare.html.jinja",
        site,
        shelf,
        all_runs=shelf.runs(),
        wanted=wanted,
        facts=facts,
        changes={one.run_id: before_and_after(one) for one in facts},
        seeds=seeds_results(facts),
        differences=config_differences([one.config for one in facts]),
        forks=_forks(shelf.runs(), wanted),
        address=shelf.href("charts.json") + "?" + urlencode([("run", run_id) for run_id in wanted]),
        axis=request.query_params.get("by", "update"),
        axes=AXES,
    )


def _forks(runs: Sequence[RunLine], wanted: Sequence[str]) -> list[tuple[int, RunLine]]:
    """Return the families of the wanted runs, each run with its depth, parents before children."""
    known = {run.run_id: run for run in runs}
    children: dict[str | None, list[RunLine]] = {}
    for run in reversed(runs):
        parent = run.parent_run_id if run.parent_run_id in known else None
        children.setdefault(parent, []).append(run)
    shown: list[tuple[int, RunLine]] = []

    def add(run: RunLine, depth: int) -> None:
        shown.append((depth, run))
        for child in children.get(run.run_id, ()):
            add(child, depth + 1)

    for root in children.get(None, ()):
        begun = len(shown)
        add(root, 0)
        if len(shown) == begun + 1 or not {run.run_id for _, run in shown[begun:]} & set(wanted):
            del shown[begun:]
    return shown
