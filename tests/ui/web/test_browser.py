"""The pages in a real browser: they follow a run, can be asked and read by all, and obey no model."""

import operator
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pyarrow.parquet
import pytest

from tests.archive.history import START_MS, made_up_run, stored
from tests.builders import made
from tests.ui.web.browser import NEEDS_BROWSER, Tab, mouse
from tests.ui.web.conftest import RECORDED, visited
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter
from unstable_stream.events import RunStarted, game_id, step_id, trajectory_id

pytestmark = [pytest.mark.longer, NEEDS_BROWSER]


def test_the_list_follows_a_run(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored(made_up_run("run-c", updates=4))
    with visited(tab, place):
        assert "token" not in tab.ask("location.href")
        tab.wait("document.body.innerText.includes('No run has been archived')")
        with ArchiveWriter(place.archive) as writer:
            writer.write(events[:30])
            tab.wait("document.body.innerText.includes('made up run-c')")
            tab.wait("document.body.innerText.includes('lost')")  # its last record is years old
            writer.write(events[30:])
            tab.wait("document.body.innerText.includes('4 of 4 updates')")
            tab.wait("document.body.innerText.includes('completed')")


def test_curves_move_while_a_run_trains_and_are_smoothed(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored(made_up_run("run-c", updates=6))
    with visited(tab, place) as base, ArchiveWriter(place.archive) as writer:
        writer.write(events[: len(events) // 2])
        tab.go(base + "runs/run-c")
        tab.wait("document.querySelectorAll('figure[data-drawn]').length > 3")
        tab.ask("document.querySelector('figure[data-key=loss]').scrollIntoView()")
        tab.wait("document.querySelector('figure[data-key=loss][data-drawn]') !== null")
        tab.ask("document.querySelector('figure[data-key=loss] details').open = true")
        points = "document.querySelectorAll('figure[data-key=loss] tbody tr').length"
        tab.wait(f"{points} > 0")
        before = tab.ask(points)
        tab.ask("{ const slider = document.querySelector('[data-smoothing]'); slider.value = 0.5;"
                "slider.dispatchEvent(new Event('input')); }")  # fmt: skip
        writer.write(events[len(events) // 2 :])
        tab.wait("document.getElementById('facts').innerText.includes('6 of 6 updates')")
        tab.ask("window.again = () => { const d = document.querySelector('figure[data-key=loss] details');"
                "d.open = false; d.open = true; return true; }")  # fmt: skip
        tab.wait(f"again() && {points} > {before}")
        cells = "document.querySelectorAll('figure[data-key=loss] tbody td:last-child')"
        values = tab.ask(f"Array.from({cells}, cell => Number(cell.innerText))")
        tab.ask(mouse("document.querySelector('figure[data-key=loss]')", ("mousemove", 0.999)))
        shown = float(tab.ask("document.querySelector('figure[data-key=loss] .legend b').innerText"))
        weights = [2.0**number for number in range(len(values))]  # each twice that of the one before it
        smoothed = sum(map(operator.mul, weights, values)) / sum(weights)
        assert shown == pytest.approx(smoothed, rel=1e-3)
        assert shown != pytest.approx(values[-1], rel=1e-3)
        tab.ask("document.querySelector('input[value=hours]').click()")
        tab.wait("location.search.startsWith('?by=hours')")
        tab.ask("document.getElementById('theme').click()")
        tab.wait("document.documentElement.dataset.theme === 'dark'")


def test_a_game_is_watched_with_the_keyboard(tab: Tab, data: Path) -> None:
    shown = "document.querySelector('.move:not([hidden]) h3').innerText"
    with visited(tab, Place.at(data)) as base:
        game = game_id("run-a", "eval", 12)
        tab.go(base + f"games/{game}")
        tab.wait(f"{shown}.startsWith('Move 0 ')")
        tab.press("ArrowRight")
        tab.wait(f"{shown}.startsWith('Move 1 ')")
        tab.wait("location.hash === '#move-1'")
        tab.press("End")
        tab.wait(f"{shown}.startsWith('Move 4 ')")
        tab.press("Home")
        tab.ask("document.querySelector('[data-speed]').value = '300'")
        tab.press(" ")
        tab.wait(f"{shown}.startsWith('Move 4 ')")
        assert tab.ask("document.querySelectorAll('.move:not([hidden])').length") == 1
        here = "document.querySelector('.movelist [aria-current]').getAttribute('href')"
        assert tab.ask(here) == "#move-4"
        tab.ask("document.querySelectorAll('.movelist li a')[1].click()")
        tab.wait(f"{shown}.startsWith('Move 1 ') && {here} === '#move-1'")
        tab.press("ArrowRight")
        tab.wait(f"{here} === '#move-2'")
        # The game's player tries to run a script; the page has its words, and its own name.
        assert tab.ask("document.body.textContent.includes('document.title=')")
        assert tab.ask("document.title") == "eval game 12"
        tab.ask("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        tab.ask("document.querySelector('[data-copy]').click()")
        tab.wait("document.querySelector('[data-copy]').textContent === 'Copied'")
        assert tab.ask("window.copied === location.href && window.copied.endsWith('#move-2')")


def test_the_games_of_a_list_follow_each_other_by_key(tab: Tab, data: Path) -> None:
    title = "document.readyState === 'complete' && document.title"
    ready = "document.querySelector('.player:not([hidden])') !== null"
    with visited(tab, Place.at(data)) as base:
        tab.go(base + "games?run=run-a&split=eval&sort=earliest")
        # Games without moves have no board; these have, and the list is refreshed while it is looked at.
        tab.wait("document.querySelectorAll('[data-board] svg.small').length === 14")
        tab.ask("document.querySelectorAll('#games tbody a')[3].click()")
        tab.wait(f"{title} === 'eval game 3'")
        for key, number in (("n", 4), ("p", 3), ("p", 2)):
            tab.press(key, ord(key.upper()), key)
            tab.wait(f"{title} === 'eval game {number}' && {ready}")
        tab.ask("document.querySelector('.near a:not([rel])').click()")
        tab.wait(f"{title} === 'Games'")
        assert tab.ask("document.querySelector('[name=split]').value") == "eval"


_GAME = game_id("run-a", "eval", 12)
_PAGES = (
    *("", "runs/run-a", "compare?run=run-a&run=run-b", "games", f"games/{_GAME}", "sql?q=FROM+runs"),
    *(f"games/{_GAME}?beside={game_id('run-a', 'eval', 4)}", "why?of=run-a:update:3", "what-if?run=run-a"),
    *("play", "data", "diff?run=run-a&run=run-b", "numbers?run=run-a", "runs/run-a/surprises"),
)


def test_sql_is_asked_charted_and_shared(tab: Tab, data: Path) -> None:
    sql = "SELECT 'a' AS who, range AS x, range * 2 AS y FROM range(9)"
    nine_rows = "document.querySelectorAll('#rows tbody tr').length === 9"
    with visited(tab, Place.at(data)) as base:
        tab.go(base + "sql")
        tab.ask(f'document.getElementById("q").value = "{sql}"')
        tab.ask("document.getElementById('ask').click()")
        tab.wait(nine_rows)
        tab.ask("document.getElementById('chart').open = true")
        tab.wait("document.querySelector('#plot canvas') !== null")
        shared = tab.ask("location.href")
        tab.go("about:blank")
        tab.go(shared)
        tab.wait(nine_rows)
        tab.go(shared.split("?")[0] + "?q=SELECT+'<img+src=x+onerror=alert(1)>'+AS+text")
        tab.wait("document.querySelector('#rows td').innerText.startsWith('<img')")
        # A prompt does not make its row as high as the screen.
        tab.go(shared.split("?")[0] + "?q=SELECT+repeat('a+line'+||+chr(10),+500)")
        tab.wait("document.querySelector('#rows td .much')?.clientHeight < 200")


def test_rows_are_sorted_filtered_and_saved_by_clicking(tab: Tab, data: Path) -> None:
    rows = "document.querySelectorAll('#rows tbody tr').length"
    first = "document.querySelector('#rows tbody td').innerText"
    with visited(tab, Place.at(data)) as base:
        tab.go(base + "data")
        tab.wait("document.querySelector('[data-count]').innerText === '2'")  # the runs
        tab.ask("document.querySelector('a[href$=\"FROM+learning_curve\"]').click()")
        tab.wait(f"location.search.startsWith('?q=FROM') && {rows} > 2")
        tab.go(base + "sql?q=SELECT range AS n, 'g' || range % 3 AS \"<b>\" FROM range(30)")
        tab.wait(f"{rows} === 30")
        for sorted_first in ("0", "29", "0"):
            tab.ask("document.querySelector('#rows th a').click()")
            tab.wait(f"{first} === '{sorted_first}' && !document.getElementById('ask').disabled")
        for column in (0, 1):
            tab.ask(f"document.querySelectorAll('#rows th .values')[{column}].click()")
            tab.wait(f"document.querySelectorAll('#facets .facet').length === {column + 1}")
        assert tab.ask("document.querySelectorAll('#facets .facet > svg a').length") == 15
        tab.ask("document.querySelectorAll('#facets .facet')[1].querySelector('li a').click()")
        tab.wait(f"{rows} === 10 && document.getElementById('narrowed').innerText.includes('<b> = g0')")
        tab.ask("document.getElementById('name').value = 'mine'")
        tab.ask("document.querySelector('#save button').click()")
        tab.wait("location.search.includes('name=mine')")
        tab.go(base + "sql")
        tab.ask("document.querySelector('#saved a').click()")
        tab.wait(f"{rows} === 10 && document.getElementById('name').value === 'mine'")
        tab.ask("document.querySelector('#narrowed a').click()")
        tab.wait(f"{rows} === 30")
        tab.ask("document.querySelector('#saved button').click()")
        assert (
            tab.ask("document.getElementById('saved').children.length === 0 && localStorage.queries") == "{}"
        )


def test_words_are_completed(tab: Tab, data: Path) -> None:
    with visited(tab, Place.at(data)) as base:
        tab.go(base + "sql")
        tab.ask("document.getElementById('q').focus()")
        for typed in ("SEL", " * FROM learning_c", " WHERE policy_"):
            tab.call("Input.insertText", text=typed)
            tab.wait("!document.getElementById('words').hidden")
            tab.press("Tab", 9)
        assert tab.ask("document.getElementById('q').value") == (
            "SELECT * FROM learning_curve WHERE policy_version"
        )
        tab.press("Tab", 9)  # there is nothing to complete any more: the keyboard goes on
        assert tab.ask("document.activeElement.id") == "ask"


def test_what_another_site_asks_is_asked_by_hand(tab: Tab, data: Path) -> None:
    with visited(tab, Place.at(data)) as base:
        tab.go(f"data:text/html,<a href='{base}sql?q=SELECT+41'>look</a>")
        tab.ask("document.querySelector('a').click()")
        tab.wait("document.getElementById('foreign') !== null")
        assert tab.ask("document.getElementById('answer').hidden")
        tab.ask("document.getElementById('ask').click()")
        tab.wait("document.querySelector('#rows td')?.innerText === '41'")


def test_zoom_and_hidden_lines_outlive_a_refresh(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored(made_up_run("run-c", updates=12))
    figure = "document.querySelector('figure[data-key=reward]')"
    with visited(tab, place) as base, ArchiveWriter(place.archive) as writer:
        writer.write(events[: len(events) // 2])
        tab.go(base + "runs/run-c")
        tab.wait(f"{figure} !== null")
        tab.ask(f"{figure}.scrollIntoView()")
        tab.wait(f"{figure}.dataset.drawn !== undefined")
        tab.ask(f"{figure}.querySelector('.legend-line').click()")
        tab.ask(mouse(figure, ("mousemove", 0.3), ("mousedown", 0.3), ("mousemove", 0.7), ("mouseup", 0.7)))
        tab.wait(f"Number({figure}.dataset.from) > 1")
        zoomed = tab.ask(f"[{figure}.dataset.from, {figure}.dataset.to]")
        writer.write(events[len(events) // 2 :])
        tab.wait("document.getElementById('facts').innerText.includes('12 of 12 updates')")
        tab.wait(f"{figure}.dataset.last === '12'")
        assert tab.ask(f"[{figure}.dataset.from, {figure}.dataset.to]") == zoomed
        assert tab.ask(f"{figure}.querySelector('.legend-line').getAttribute('aria-pressed')") == "false"
        tab.ask(f"{figure}.querySelector('.legend-line').click()")
        tab.ask(mouse(figure, *((kind, 0.5) for kind in ("mousemove", "mousedown", "mouseup", "click"))))
        tab.wait("location.pathname.endsWith('/games') && document.querySelector('#games td') !== null")
        asked = parse_qs(urlsplit(tab.ask("location.href")).query)
        assert asked["run"] == ["run-c"]
        low, high = map(float, zoomed)
        assert low <= int(asked["update"][0]) <= high


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


def test_the_graph_fits_and_is_zoomed(tab: Tab, data: Path) -> None:
    width = "document.querySelector('.graph svg').getBoundingClientRect().width"
    room = "document.querySelector('.graph').clientWidth"
    with visited(tab, Place.at(data)) as base:
        tab.go(base + "why?of=run-a:update:3")
        tab.wait("document.querySelector('.graph').dataset.scale !== undefined")
        fit = tab.ask(width)
        assert fit <= tab.ask(room) + 1
        tab.ask("document.querySelector('[data-zoom=in]').click()")
        assert tab.ask(width) == pytest.approx(1.25 * fit, rel=0.01)
        tab.ask("document.querySelector('.graph').focus()")
        tab.press("-", 189, "-")
        assert tab.ask(width) == pytest.approx(fit, rel=0.01)
        tab.press("+", 187, "+")
        tab.press("0", 48, "0")
        assert tab.ask(width) == pytest.approx(fit, rel=0.01)
        turned = "new WheelEvent('wheel', { deltaY: -200, cancelable: true })"
        wheel = f"document.querySelector('.graph').dispatchEvent({turned})"
        assert not tab.ask(wheel)  # it was taken
        assert tab.ask(width) > 1.4 * fit
        tab.ask("document.activeElement.blur()")
        assert tab.ask(wheel)  # the page scrolls


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
        assert "range" in tab.ask("location.search")  # the address holds even that query


def test_rows_are_saved_as_files(tab: Tab, data: Path, tmp_path: Path) -> None:
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    with visited(tab, Place.at(data)) as base:
        tab.go(base + "sql?q=SELECT game_index, reason FROM game_outcomes ORDER BY ALL LIMIT 2")
        tab.wait("document.querySelectorAll('#rows tbody tr').length === 2")
        for kind in ("csv", "parquet"):
            tab.ask(f"document.getElementById('{kind}').click()")
            tab.wait(f"document.getElementById('told').innerText === 'saved rows.{kind}'")
            while not (tmp_path / f"rows.{kind}").exists():
                time.sleep(0.03)
    assert (tmp_path / "rows.csv").read_text(encoding="utf-8").startswith("game_index,reason\n0,")
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").num_rows == 2


def test_runs_are_chosen_in_the_list_while_it_moves(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored([*made_up_run("run-a", updates=2), *made_up_run("run-c", updates=4)])
    chosen = "document.querySelector('[name=run][value=run-a]')"
    with visited(tab, place) as base, ArchiveWriter(place.archive) as writer:
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


# WCAG 2.2, success criterion 1.4.3: 4.5 for text, 3 for large text, by the relative luminance of the computed
# colours. Elements whose own text is not shown, or that are disabled, do not count.
_TOO_FAINT = """(() => {
  const parsed = (colour) => {
    const parts = colour.match(/[\\d.]+/g).map(Number);
    return parts.length < 4 ? [...parts, 1] : parts;
  };
  const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3]));
  const luminance = (colour) => colour.map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.push(parsed(getComputedStyle(each).backgroundColor));
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility()) { continue; }
    if (element.closest("svg, canvas, :disabled, .skip, .u-plot")) { continue; }
    const style = getComputedStyle(element), back = behind(element);
    const front = over(parsed(style.color), back);
    const [light, dark] = [luminance(front), luminance(back)].sort((one, other) => other - one);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < (large ? 3 : 4.5)) {
      const says = element.textContent.trim().slice(0, 40);
      found.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)} ${says}`);
    }
  }
  return [...new Set(found)];
})()"""
_NAMELESS = """(() => {
  const named = (element) => element.getAttribute("aria-label") || element.title || element.labels?.length
    || element.innerText?.trim() || element.querySelector?.("[aria-label]");
  const wanted = "button, a[href], input:not([type=hidden]), select, textarea, [role=img]";
  const found = [...document.querySelectorAll(wanted)]
    .filter((element) => element.checkVisibility() && !named(element))
    .map((element) => element.outerHTML.slice(0, 120));
  if (document.querySelectorAll("h1").length < 1) { found.push("no heading"); }
  if (!document.documentElement.lang || !document.title) { found.push("no language or title"); }
  for (const image of document.querySelectorAll("img:not([alt])")) { found.push(image.outerHTML); }
  return found;
})()"""


def test_pages_fit_every_screen_text_stands_out_and_everything_has_a_name(browser: Tab, data: Path) -> None:
    found: dict[tuple[str, object], list[str]] = {}
    with visited(browser, Place.at(data)) as base:
        for path in (*_PAGES, "nothing"):
            browser.resize(360, 800)
            browser.prefer("light")
            browser.go(base + path)
            if path.startswith("sql"):
                browser.wait("document.querySelectorAll('#rows tbody tr').length > 0")
            for width in (360, 700, 1400):
                browser.resize(width, 800)
                if not browser.ask("document.documentElement.scrollWidth <= innerWidth"):
                    found[path, width] = ["wider than the screen"]
            for scheme in ("light", "dark"):
                browser.prefer(scheme)
                if problems := [*browser.ask(_TOO_FAINT), *browser.ask(_NAMELESS)]:
                    found[path, scheme] = problems
    assert found == {}


def test_what_belongs_to_a_run_is_folded_away_and_stays_so(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    parent = {"parent_run_id": "run-c", "parent_update": 1, "config": {"learner": {"iterations": 9}}}
    fork = made(RunStarted, run_id="run-d", occurred_at_ms=START_MS + 60_000, **parent)
    shown = "document.querySelector('.member').checkVisibility()"
    before = [*made_up_run("run-c", updates=1), fork]
    records = stored([*before, *made_up_run("run-e", updates=1)])
    with ArchiveWriter(place.archive) as writer:
        writer.write(records[: len(before)])
        with visited(tab, place):
            tab.wait(shown)
            tab.ask("document.querySelector('.group input').click()")
            tab.wait(f"!{shown}")
            writer.write(records[len(before) :])
            tab.wait("document.body.innerText.includes('made up run-e')")
            assert not tab.ask(shown)
