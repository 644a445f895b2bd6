"""Take the pictures of docs/how-to/ui.md from a run: ``python docs/images/ui.py DATA RUN GAME``."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.ui.web.browser import Tab, opened_tab
from tests.ui.web.conftest import serving
from unstable_stream.api.place import Place
from unstable_stream.history.views.run_list import list_runs

_HERE = Path(__file__).parent
_DRAWN = (
    "document.querySelectorAll('figure[data-drawn]').length > 0 && "
    "document.querySelector('#results table') !== null && document.querySelector('#latest svg') !== null"
)
_COMPARED = "document.querySelectorAll('figure[data-drawn]').length > 0"
_WATCHED = "document.querySelector('.player:not([hidden])') !== null"
_SQL = "SELECT opponent, policy_version, win_rate FROM win_rates WHERE split = 'eval' AND seat = 1"
_LISTED = "document.querySelectorAll('#facets .facet').length === 2"
_BY_OPPONENT = """
    const by = document.getElementById('by');
    by.value = '0';
    by.dispatchEvent(new Event('change'));
"""
_TO_THE_CURVES = """
    const figure = document.querySelectorAll('#charts figure')[1];
    figure.style.scrollMarginTop = '140px';
    figure.scrollIntoView({ behavior: 'instant' });
"""
_TO_THE_LADDER = """
    const ladder = document.querySelector('figure[data-key=ladder-0]');
    ladder.style.scrollMarginTop = '140px';
    ladder.scrollIntoView({ behavior: 'instant' });
"""
_LADDER = "document.querySelector('table.ladder') !== null"
_CURVES_ARE_SEEN = """
    Array.from(document.querySelectorAll('#charts figure')).every(each => {
        const place = each.getBoundingClientRect();
        return place.bottom < 0 || place.top > innerHeight || each.hasAttribute('data-drawn');
    })
"""
_STATE = "document.getElementById('told').dataset.state"
_LOADING_S = 240.0
_PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


def take(data: Path, run: str, game: str, into: Path = _HERE) -> None:
    """Write one PNG for each of the main pages but the one of a game being played."""
    lines = list_runs(Place.at(data).archive)
    other = next((line.run_id for line in lines if line.run_id != run), run)
    tournament = next((line.run_id for line in lines if line.kind == "tournament"), run)
    pages = {
        "ui-runs": ("", 640, "document.querySelector('table.runs') !== null"),
        "ui-compare": (f"compare?run={run}&run={other}&smoothing=0.7", 600, _COMPARED),
        "ui-compare-dark": (f"compare?run={run}&run={other}&smoothing=0.7", 600, _COMPARED),
        "ui-what-if": (f"what-if?run={run}", 1000, "true"),
        "ui-run": (f"runs/{run}", 1060, _DRAWN),
        "ui-ladder": (f"runs/{tournament}", 640, _LADDER),
        "ui-game": (f"games/{game}#move-5", 860, _WATCHED),
        "ui-game-dark": (f"games/{game}#move-5", 860, _WATCHED),
        "ui-why": (f"why?of={run}:update:3", 660, "true"),
        "ui-data": ("sql?q=FROM moves&facet=game_turn&facet=valid&is.split=eval", 1000, _LISTED),
        "ui-sql": (f"sql?q={_SQL}", 1000, "document.querySelectorAll('#rows tr').length > 3"),
    }
    with _opened(data) as (tab, base):
        for name, (path, height, ready) in pages.items():
            tab.prefer("dark" if name.endswith("-dark") else "light")
            tab.resize(1180, height)
            tab.go(base + path)
            tab.wait(ready)
            if name == "ui-sql":
                tab.ask("document.getElementById('chart').open = true")
                tab.ask(_BY_OPPONENT)
                tab.wait("document.querySelector('#plot canvas') !== null")
            if name.startswith("ui-compare"):
                tab.ask(_TO_THE_CURVES)
                tab.wait(_CURVES_ARE_SEEN)
            if name == "ui-ladder":
                tab.ask(_TO_THE_LADDER)
            tab.wait(_PAINTED)
            tab.picture(into / f"{name}.png")


def take_play(data: Path, run: str, into: Path = _HERE) -> None:
    """Play three moves against the newest checkpoint of a run, write a PNG, and give up."""
    with _opened(data) as (tab, base):
        tab.resize(1180, 900)
        tab.go(base + f"play?run={run}")
        tab.ask("document.querySelector('form[action$=play] button').click()")
        tab.wait(f"location.pathname.includes('/play/') && {_STATE} === 'yours'", within_s=_LOADING_S)
        for offer in (5, 7, 4):
            moves = tab.ask("document.querySelectorAll('#moves li').length")
            tab.ask(f"document.querySelectorAll('#offers button')[{offer}].click()")
            tab.wait(
                f"document.querySelectorAll('#moves li').length > {moves} && "
                f"['yours', 'over', 'failed'].includes({_STATE})",
                within_s=_LOADING_S,
            )
        tab.wait(_PAINTED)
        tab.picture(into / "ui-play.png")
        tab.ask("document.querySelector('#give-up button').click()")
        tab.wait(f"['over', 'failed'].includes({_STATE})", within_s=_LOADING_S)


@contextlib.contextmanager
def _opened(data: Path) -> Iterator[tuple[Tab, str]]:
    """Serve a data directory to a browser; give its tab, and how addresses begin."""
    with (
        serving(Place.at(data)) as link,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        opened_tab(Path(profile)) as tab,
    ):
        tab.go(link)
        yield tab, tab.ask("location.origin + location.pathname")


if __name__ == "__main__":
    take(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    take_play(Path(sys.argv[1]), sys.argv[2])
