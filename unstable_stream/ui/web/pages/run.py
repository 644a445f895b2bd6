"""Runs, live: all in a list; one with results, curves, ladder, payoff matrix, health and alerts; and several
beside each other with curves in the same plots, configurations and forks.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from unstable_stream.api import topics
from unstable_stream.api.doctor import examine_disk
from unstable_stream.api.games import find_games
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError, EventLogError
from unstable_stream.history.hindsight.diff import diff_runs
from unstable_stream.history.views.boards import boards_of
from unstable_stream.history.views.report.charts import AXES
from unstable_stream.history.views.report.groups import compare_groups, group_runs
from unstable_stream.history.views.report.players import who_beats_whom
from unstable_stream.history.views.report.reading import Row, RunFacts, before_and_after
from unstable_stream.history.views.results import read_telling
from unstable_stream.history.views.run_list import RunLine, RunStanding, families
from unstable_stream.history.views.transcript import load_transcripts
from unstable_stream.history.views.written import config_differences, config_text
from unstable_stream.services.launch.supervisor import LAUNCHER_LOG
from unstable_stream.services.tracking.lag import run_of_group
from unstable_stream.ui.web import charts
from unstable_stream.ui.web.alarms import Alarm, GroupLag, archived_alarms, disk_alarms, lag_alarms
from unstable_stream.ui.web.site import Shelf, Site, page

_DEATHS: Final = 5
_LAST_GAMES: Final = 3
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


def show(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page."""
    run, facts, services, raised = _known(shelf, request)
    telling = shelf.remember(("telling", run.run_id), partial(read_telling, run_id=run.run_id))
    return page(
        "run.html.jinja",
        site,
        shelf,
        run=run,
        facts=facts,
        telling=telling.get(run.run_id),
        alarms=list(archived_alarms(run, facts, services, raised)),
        services=services,
        raised=raised,
        config=config_text(facts.config),
        axis=request.query_params.get("by", "updates"),
        axes=AXES,
    )


def _known(shelf: Shelf, request: Request) -> tuple[RunStanding, RunFacts, list[Row], list[Row]]:
    """Return how far a run is, its summary, the last reports of its services, and alerts of plug-ins."""
    run = shelf.run(request.path_params["run"])
    (facts,) = charts.summaries(shelf, [run.run_id])
    with shelf.reading() as archive:
        services = query(archive, _SERVICES, {"run": run.run_id}).dicts()
        raised = query(archive, _RAISED, {"run": run.run_id}).dicts()
    return run, facts, services, raised


def wrong(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the part of the page about what is wrong, also with consumers and the disk while it runs."""
    run, facts, services, raised = _known(shelf, request)
    alarms = list(archived_alarms(run, facts, services, raised))
    if run.state in ("running", "lost"):
        lags, silent = _lags(shelf, run.run_id)
        alarms += [*lag_alarms(lags), *disk_alarms(examine_disk(shelf.place))]
        if silent and run.state == "running":
            alarms.append(Alarm(f"The log does not answer: {silent}", "Nothing is recorded without it."))
    return page("wrong.html.jinja", site, shelf, alarms=alarms)


def latest_games(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the part of the page about its last games, as boards where they have some."""
    run = shelf.run(request.path_params["run"])
    with shelf.reading() as archive:
        found = find_games(archive, run=run.run_id, state="finished", limit=_LAST_GAMES).dicts()
        games = load_transcripts(archive, [row["game"] for row in found if row["run"] == run.run_id])
    return page(
        "latest.html.jinja",
        site,
        shelf,
        games=[(game, (boards_of(game.env_id, game.moves) or [None])[-1]) for game in games],
    )


def results(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the part of the page about what its policies won, before and after, or who is best."""
    (facts,) = charts.results(shelf, [request.path_params["run"]])
    changes = before_and_after(facts)
    told: Sequence[str] = ()
    if not facts.opponents:  # of a tournament, whose players all met each other
        (read,) = charts.read(shelf, [facts.run_id])
        told = who_beats_whom([read.facts])[0].told
    once = () if changes else facts.opponents
    return page("results.html.jinja", site, shelf, changes=changes, once=once, told=told)


def cost(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the rows of the page about what it cost."""
    (facts,) = charts.results(shelf, [request.path_params["run"]])
    return page("cost.html.jinja", site, shelf, cost=facts.cost)


def curves(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the numbers of all charts of one run or several."""
    return charts.answer(*_asked(shelf, request))


def curve_csv(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the numbers of one of these charts as a file."""
    return charts.download(*_asked(shelf, request), request.query_params.get("chart", ""))


def numbers(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page with a link to the numbers of each of these charts, for browsers without scripts."""
    found = charts.drawn(*_asked(shelf, request))
    address = shelf.href("charts.csv") + "?" + request.url.query
    return page(
        "numbers.html.jinja", site, shelf, sections=[*found.sections, *found.metrics], address=address
    )


def _asked(shelf: Shelf, request: Request) -> tuple[Sequence[charts.RunRead], str]:
    """Return what is drawn, and along which axis."""
    asked = request.query_params.getlist("run")
    return charts.read(shelf, list(dict.fromkeys(asked))), request.query_params.get("by", "updates")


def health(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the part of the page about consumers and service logs, which the archive does not know."""
    run = shelf.run(request.path_params["run"])
    # What others publish later is nothing that the groups of a run that is over have to read.
    lags, silent = _lags(shelf, run.run_id if run.state in ("running", "lost") else None)
    return page("health.html.jinja", site, shelf, lags=lags, silent=silent, errors=_errors(shelf, run.run_id))


def _lags(shelf: Shelf, run_id: str | None) -> tuple[list[GroupLag], str | None]:
    """Return the lag of each group that serves all runs or this one, and why the log could not be asked."""
    lags: list[GroupLag] = []
    try:
        (found,) = topics.lags(shelf.place, everyone=True)
    except EventLogError as error:
        return [], str(error)
    for group in dict.fromkeys(lag.group for lag in found):
        if run_of_group(group) in (None, run_id):
            own = [lag for lag in found if lag.group == group]
            behind = sorted({lag.at.topic for lag in own if lag.lag})
            lags.append(GroupLag(group, sum(lag.lag for lag in own), behind))
    return lags, None


def _errors(shelf: Shelf, run_id: str) -> list[tuple[str, str]]:
    """Return when processes of a run that was started here died lately, and of what."""
    notes = shelf.place.data.service_logs(run_id) / LAUNCHER_LOG
    if not notes.exists():
        return []
    moments = [line.partition(" ") for line in notes.read_text(encoding="utf-8").splitlines()]
    return [(moment, note) for moment, _, note in moments[-_DEATHS:]]


def show_all(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page."""
    runs = shelf.runs()
    return page(
        "runs.html.jinja",
        site,
        shelf,
        families=families(runs),
        several=len(runs) > 1,
        sweeps=shelf.sweeps(),
        dropped=shelf.dropped(),
    )


def compare(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page; without runs in its address, one to choose them on."""
    asked = request.query_params.getlist("run")
    for name in request.query_params.getlist("sweep"):
        asked += shelf.sweeps().get(name, [])
    wanted = list(dict.fromkeys(asked))
    facts = charts.results(shelf, wanted)
    # That of a group that is no longer among the chosen is forgotten.
    baseline = next((run for run in request.query_params.getlist("baseline") if run in wanted), None)
    return page(
        "compare.html.jinja",
        site,
        shelf,
        all_runs=shelf.runs(),
        wanted=wanted,
        facts=facts,
        changes={one.run_id: before_and_after(one) for one in facts},
        table=compare_groups(group_runs(facts), baseline) if facts else None,
        differences=config_differences([one.config for one in facts]),
        forks=_forks(shelf.runs(), wanted),
        address=shelf.href("charts.json") + "?" + urlencode([("run", run_id) for run_id in wanted]),
        axis=request.query_params.get("by", "updates"),
        axes=AXES,
    )


def differ(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return where two runs part."""
    wanted = request.query_params.getlist("run")
    known = {run.run_id for run in shelf.runs()}
    if len(wanted) != 2 or not known.issuperset(wanted):
        raise ConfigError(f"{', '.join(wanted) or 'nothing'}: name two runs that are here, run=ID&run=ID")
    found = shelf.remember(("diff", *wanted), partial(diff_runs, one=wanted[0], other=wanted[1]))
    return page("diff.html.jinja", site, shelf, found=found)


def _forks(runs: Sequence[RunLine], wanted: Sequence[str]) -> list[tuple[int, RunLine]]:
    """Return the families of the wanted runs that have more than one member, each run with its depth."""
    return [
        pair
        for family in families(runs)
        if len(family) > 1 and any(run.run_id in wanted for _, run in family)
        for pair in family
    ]
