"""Take the pictures of docs/ui.md from a data directory: ``python docs/images/ui.py DATA RUN GAME``."""

import sys
import tempfile
from pathlib import Path

from tests.ui.browser import opened_tab
from tests.ui.conftest import serving
from unstable_stream.api.place import Place
from unstable_stream.views.run_list import list_runs

_HERE = Path(__file__).parent
_DRAWN = (
    "document.querySelectorAll('figure[data-drawn]').length > 0 && "
    "document.querySelector('#results table') !== null"
)
_COMPARED = "document.querySelectorAll('figure[data-drawn]').length > 0"
_WATCHED = "document.querySelector('.player:not([hidden])') !== null"
_SQL = "SELECT opponent, policy_version, win_rate FROM win_rates WHERE split = 'eval' AND seat = 1"
_BY_OPPONENT = """
    const by = document.getElementById('by');
    by.value = '0';
    by.dispatchEvent(new Event('change'));
"""
_PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


def take(data: Path, run: str, game: str, into: Path = _HERE) -> None:
    """Write one PNG for each of the main pages."""
    other = next((line.run_id for line in list_runs(Place.at(data).archive) if line.run_id != run), run)
    pages = {
        "ui-runs": ("", 420, "document.querySelector('table.runs') !== null"),
        "ui-compare": (f"compare?run={run}&run={other}", 1000, _COMPARED),
        "ui-what-if": (f"what-if?run={run}", 1000, "true"),
        "ui-play": (f"play?run={run}", 360, "true"),
        "ui-run": (f"runs/{run}", 1180, _DRAWN),
        "ui-game": (f"games/{game}#move-5", 900, _WATCHED),
        "ui-game-dark": (f"games/{game}#move-5", 900, _WATCHED),
        "ui-why": (f"why?of={run}:update:3", 620, "true"),
        "ui-sql": (f"sql?q={_SQL}", 1000, "document.querySelectorAll('#rows tr').length > 3"),
    }
    with (
        serving(Place.at(data)) as link,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        opened_tab(Path(profile)) as tab,
    ):
        tab.go(link)
        base = tab.ask("location.origin + location.pathname")
        for name, (path, height, ready) in pages.items():
            tab.prefer("dark" if name.endswith("-dark") else "light")
            tab.resize(1180, height)
            tab.go(base + path)
            tab.wait(ready)
            if name == "ui-sql":
                tab.ask("document.getElementById('chart').open = true")
                tab.ask(_BY_OPPONENT)
                tab.wait("document.querySelector('#plot canvas') !== null")
            if name == "ui-compare":
                tab.ask("document.getElementById('charts').scrollIntoView({ behavior: 'instant' })")
            tab.wait(_PAINTED)
            tab.picture(into / f"{name}.png")


if __name__ == "__main__":
    take(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
