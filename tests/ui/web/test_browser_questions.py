"""What people ask of the pages in a real browser: why, what if, SQL; and the choice of what to compare."""

from pathlib import Path

import pyarrow.parquet
import pytest

from tests.archive.history import made_up_run, stored
from tests.ui.web.browser import NEEDS_BROWSER, Tab
from tests.ui.web.conftest import RECORDED, visited
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter
from unstable_stream.events import game_id, step_id, trajectory_id

pytestmark = [pytest.mark.longer, NEEDS_BROWSER]

_ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"
_HEADING = "document.querySelector('h1').innerText"
_CONTROLS = r"/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/"


def _click_box(tab: Tab, of: str) -> None:
    """Click a node of the graph as a person does, wherever it is drawn, once nothing moves it any more."""
    tab.wait("document.readyState === 'complete'")
    tab.ask(f"document.querySelector('svg a[aria-label=\"{of}\"] rect').scrollIntoView({{block: 'center'}})")
    box = f"document.querySelector('svg a[aria-label=\"{of}\"] rect').getBoundingClientRect()"
    x, y = tab.ask(f"(() => {{ const at = {box}; return [at.x + at.width / 2, at.y + at.height / 2]; }})()")
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    kind, name = of.split(" ", 1)
    tab.wait(f"{_HEADING} === 'Why: {kind} {name}'")


def test_why_is_followed_both_ways(tab: Tab, data: Path) -> None:
    game = game_id("run-a", "train", 4)
    step = step_id(trajectory_id(game, 0), 0)
    with visited(tab, Place.at(data)) as base:
        tab.go(base + f"games/{game}#move-0")
        tab.ask(
            "document.querySelector('.move:not([hidden]) .said a[href*=\"/why?of=\"]:last-child').click()"
        )
        tab.wait(f"{_HEADING} === 'Why: step {step}'")
        # Ahead: the update that trained on it, and the checkpoint that came of it; and back to its game.
        _click_box(tab, "update 2")
        _click_box(tab, "checkpoint ckpt-000002")
        _click_box(tab, "update 2")
        tab.call("Page.navigate", url=base + f"why?of={step}")
        tab.wait(f"{_HEADING} === 'Why: step {step}'")
        _click_box(tab, f"game {game}")
        _click_box(tab, "checkpoint ckpt-000001")
        _click_box(tab, "update 1")
        # With the keyboard: the boxes are links.
        tab.ask("document.querySelector('svg a[aria-label=\"checkpoint ckpt-000001\"]').focus()")
        tab.press("Enter", 13, "\r")
        tab.wait(f"{_HEADING} === 'Why: checkpoint ckpt-000001'")


def test_a_what_if_is_asked_compared_and_kept(tab: Tab, recorded: Place) -> None:
    answered = "document.getElementById('answer')?.dataset.going === 'no'"
    with visited(tab, recorded) as base:
        tab.go(base + f"what-if?run={RECORDED}")
        # What was used is at hand: in the fields, and as the text to change.
        assert tab.ask("document.querySelector('form.panel [name=tau]').placeholder") == "0"
        form = "document.querySelector('[name=system][value=elo]').form"
        tab.ask(f"{form}.elements.k.value = '16'")
        tab.ask(f"{form}.elements.label.value = 'by-elo-in-a-browser'")
        tab.ask(f"{form}.querySelector('button').click()")
        tab.wait(answered)
        told = tab.ask("document.getElementById('answer').innerText")
        assert "ratings differ from those used" in told
        assert "Kept in" in told
        assert tab.ask("document.querySelectorAll('#answer tbody tr').length") > 0
        assert (recorded.root / "what-if" / RECORDED / "by-elo-in-a-browser" / "about.json").is_file()
        tab.ask("document.querySelector('main > p > a[href*=what-if]').click()")
        # The page that is left names it, too.
        tab.wait(
            "document.getElementById('rewards') !== null"
            " && document.body.innerText.includes('by-elo-in-a-browser')"
        )
        tab.ask("document.getElementById('rewards').value = 'final = []'")
        tab.ask("document.querySelector('form[action$=rewards] button').click()")
        tab.wait(answered)
        assert tab.ask(
            "/the reward of [1-9]\\d* steps differs/.test(document.getElementById('answer').innerText)"
        )


def test_a_long_query_is_cancelled(tab: Tab, data: Path) -> None:
    with visited(tab, Place.at(data)) as base:
        tab.go(base + "sql")
        tab.ask("document.getElementById('q').focus()")
        tab.call("Input.insertText", text=_ENDLESS)
        tab.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", windowsVirtualKeyCode=13, modifiers=2)
        tab.wait("!document.getElementById('cancel').disabled")
        # Until it has begun there is nothing to cancel.
        tab.wait(
            "(document.getElementById('cancel').click(),"
            " document.getElementById('wrong').innerText === 'the query was cancelled')"
        )
        assert tab.ask(
            "document.getElementById('cancel').disabled && !document.getElementById('ask').disabled"
        )
        # The address holds even that query; the console was told of the answer.
        assert "range" in tab.ask("location.search")
        assert [each for each in tab.complaints if "400" not in each] == []
        tab.complaints.clear()


def test_rows_are_saved_as_files(tab: Tab, data: Path, tmp_path: Path) -> None:
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    with visited(tab, Place.at(data)) as base:
        tab.go(base + "sql?q=SELECT game_index, reason FROM game_outcomes ORDER BY ALL LIMIT 2")
        tab.wait("document.querySelectorAll('#rows tbody tr').length === 2")
        for kind in ("csv", "parquet"):
            tab.ask(f"document.getElementById('{kind}').click()")
            tab.wait(f"document.getElementById('told').innerText === 'saved rows.{kind}'")
            while not (tmp_path / f"rows.{kind}").exists():
                tab.ask("true")
    assert (tmp_path / "rows.csv").read_text(encoding="utf-8").startswith("game_index,reason\n0,")
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").num_rows == 2


def test_runs_are_chosen_in_the_list_while_it_moves(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored([*made_up_run("run-a", updates=2), *made_up_run("run-c", updates=4)])
    chosen = "document.querySelector('[name=run][value=run-a]')"
    with visited(tab, place) as base, ArchiveWriter(place.archive, timeout_s=60) as writer:
        writer.write(events[:-40])
        tab.go(base)
        tab.wait(f"{chosen} !== null && document.querySelector('[name=run][value=run-c]') !== null")
        tab.ask(f"{chosen}.click(); {chosen}.focus()")
        tab.ask(f"window.before = {chosen}")
        writer.write(events[-40:])
        tab.wait("document.body.innerText.includes('4 of 4 updates')")
        # The list is another one, and what was chosen, and where the keyboard is, are as they were.
        assert tab.ask(
            f"{chosen} !== window.before && {chosen}.checked && document.activeElement === {chosen}"
        )
        tab.ask("document.querySelector('[name=run][value=run-c]').click()")
        tab.ask("document.querySelector('#runs button').click()")
        tab.wait(
            "location.pathname.endsWith('/compare') && document.querySelector('figure[data-drawn]') !== null"
        )
        assert tab.ask("document.body.innerText.includes('2 of 2 runs chosen')")
        assert tab.ask("new Set(new URLSearchParams(location.search).getAll('run')).size") == 2
        names = "document.querySelector('figure[data-key=win-rate] .legend').innerText"
        assert tab.ask(f"['run-a', 'run-c'].every(each => {names}.includes(each))")


def test_two_games_are_chosen_and_turn_together(tab: Tab, data: Path) -> None:
    shown = "Array.from(document.querySelectorAll('.move:not([hidden]) h3 a')).map(each => each.innerText)"
    with visited(tab, Place.at(data)) as base:
        tab.go(base + "games?run=run-a&split=eval&sort=earliest")
        tab.ask("[2, 3].forEach(at => document.querySelectorAll('[name=game]')[at].click())")
        tab.ask("document.querySelector('#games button').click()")
        tab.wait("document.querySelectorAll('article.watched').length === 2")
        tab.wait("document.querySelector('.player:not([hidden])') !== null")
        tab.press("ArrowRight")
        tab.wait(f'JSON.stringify({shown}) === \'["Move 1","Move 1"]\'')
        assert tab.ask("location.hash") == "#move-1"
        address = tab.ask("location.href")
        tab.go("about:blank")
        tab.go(address)
        tab.wait(f'JSON.stringify({shown}) === \'["Move 1","Move 1"]\'')


def test_nothing_that_a_model_wrote_is_obeyed(tab: Tab, data: Path) -> None:
    game = game_id("run-a", "eval", 12)
    sql = f"SELECT completion, observation, prompt FROM turns WHERE game_id = '{game}'"
    with visited(tab, Place.at(data)) as base:
        for path in (f"games/{game}", "games?text=document.title", f"why?of={game}", f"sql?q={sql}"):
            tab.go(base + path)
            if path.startswith("sql"):
                tab.wait("document.querySelectorAll('#rows tbody tr').length > 0")
            assert not tab.ask(f"{_CONTROLS}.test(document.documentElement.textContent)"), path
            assert tab.ask("document.querySelectorAll('img, main script').length") == 0, path
            assert tab.ask("document.title") != "hacked", path
            if path.startswith(("sql", "games/")):
                assert tab.ask("document.body.textContent.includes('\\ufffd[31m')"), path
                assert tab.ask("document.body.textContent.includes('\\ufffd]0;hacked\\ufffd')"), path
