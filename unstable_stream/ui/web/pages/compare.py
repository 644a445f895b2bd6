"""Several runs beside each other: results, curves in the same plots, configurations, forks."""

from collections.abc import Sequence
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from unstable_stream.history.views.report.reading import before_and_after
from unstable_stream.history.views.run_list import RunLine
from unstable_stream.history.views.written import config_differences
from unstable_stream.ui.web import charts
from unstable_stream.ui.web.charts import AXES
from unstable_stream.ui.web.rendering import page
from unstable_stream.ui.web.site import Shelf, Site


def show(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page; without runs in its address, one to choose them on."""
    wanted = list(dict.fromkeys(request.query_params.getlist("run")))
    facts = charts.results(shelf, wanted)
    return page(
        "compare.html.jinja",
        site,
        shelf,
        all_runs=shelf.runs(),
        wanted=wanted,
        facts=facts,
        changes={one.run_id: before_and_after(one) for one in facts},
        differences=config_differences([one.config for one in facts]),
        forks=_tree(shelf.runs(), wanted),
        address=shelf.href("charts.json") + "?" + urlencode([("run", run_id) for run_id in wanted]),
        axis=request.query_params.get("by", "update"),
        axes=AXES,
    )


def _tree(runs: Sequence[RunLine], wanted: Sequence[str]) -> list[tuple[int, RunLine]]:
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
