"""The pages in a real browser: they follow a run, and nothing that a model wrote does anything."""

import socket
import threading
from pathlib import Path

import pytest

from tests.archive.history import made_up_run, stored
from tests.ui.web.browser import NEEDS_BROWSER, Tab
from tests.ui.web.conftest import visited
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter
from unstable_stream.events import game_id

pytestmark = [pytest.mark.longer, NEEDS_BROWSER]


def test_the_list_follows_a_run(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored(made_up_run("run-c", updates=4))
    with visited(tab, place):
        assert "token" not in tab.ask("location.href")
        tab.wait("document.body.innerText.includes('No run has been archived')")
        with ArchiveWriter(place.archive, timeout_s=60) as writer:
            writer.write(events[:30])
            tab.wait("document.body.innerText.includes('made up run-c')")
            tab.wait("document.body.innerText.includes('lost')")  # its last record is years old
            writer.write(events[30:])
            tab.wait("document.body.innerText.includes('4 of 4 updates')")
            tab.wait("document.body.innerText.includes('completed')")


def test_curves_move_while_a_run_trains(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored(made_up_run("run-c", updates=6))
    with visited(tab, place) as base, ArchiveWriter(place.archive, timeout_s=60) as writer:
        writer.write(events[: len(events) // 2])
        tab.go(base + "runs/run-c")
        tab.wait("document.querySelectorAll('figure[data-drawn]').length > 3")
        tab.ask("document.querySelector('figure[data-key=loss]').scrollIntoView()")
        tab.wait("document.querySelector('figure[data-key=loss][data-drawn]') !== null")
        tab.ask("document.querySelector('figure[data-key=loss] details').open = true")
        points = "document.querySelectorAll('figure[data-key=loss] tbody tr').length"
        tab.wait(f"{points} > 0")
        before = tab.ask(points)
        writer.write(events[len(events) // 2 :])
        tab.wait("document.getElementById('facts').innerText.includes('6 of 6 updates')")
        tab.ask("window.again = () => { const d = document.querySelector('figure[data-key=loss] details');"
                "d.open = false; d.open = true; return true; }")  # fmt: skip
        tab.wait(f"again() && {points} > {before}")
        tab.ask("document.querySelector('input[value=hours]').click()")
        tab.wait("location.search === '?by=hours'")
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
        # The game's player tries to run a script; the page has its words, and its own name.
        assert tab.ask("document.body.textContent.includes('document.title=')")
        assert tab.ask("document.title") == "eval game 12"


@pytest.mark.parametrize("width", [360, 700, 1400])
def test_pages_fit_narrow_and_wide_screens(tab: Tab, data: Path, width: int) -> None:
    tab.resize(width, 800)
    game = game_id("run-a", "eval", 12)
    paths = (
        "",
        "runs/run-a",
        "games",
        f"games/{game}",
        f"games/{game}?beside={game_id('run-a', 'eval', 4)}",
        "compare?run=run-a&run=run-b",
        "sql?q=SELECT * FROM runs",
        "why?of=run-a:update:3",
        "what-if?run=run-a",
        "play",
    )
    with visited(tab, Place.at(data)) as base:
        for path in paths:
            tab.go(base + path)
            if path.startswith("sql"):
                tab.wait("document.querySelectorAll('#rows tbody tr').length > 0")
            assert tab.ask("document.documentElement.scrollWidth <= innerWidth"), path


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


def test_forms_arrive(tab: Tab, data: Path) -> None:
    with visited(tab, Place.at(data)) as base:
        tab.go(base + "what-if?run=run-a")
        tab.ask("document.querySelector('form[action$=ratings] button').click()")
        # The made-up run's configuration is none, and the page says so.
        tab.wait("document.querySelector('.trouble') !== null && location.pathname.includes('/what-if/')")
        tab.wait("document.querySelector('.trouble').innerText.includes('run-a')")


def test_what_another_site_asks_is_asked_by_hand(tab: Tab, data: Path) -> None:
    with visited(tab, Place.at(data)):
        port = tab.ask("location.port")
        # Another origin of the same site, which a browser tells apart by the port alone.
        with socket.create_server(("127.0.0.1", 0)) as bound:
            page = f'<link rel="icon" href="data:,"><a href="http://127.0.0.1:{port}/{data.name}/sql?q=SELECT+41">look</a>'.encode()
            other = threading.Thread(target=_answer_once, args=(bound, page))
            other.start()
            tab.go(f"http://127.0.0.1:{bound.getsockname()[1]}/")
            other.join()
        tab.ask("document.querySelector('a').click()")
        tab.wait("document.getElementById('foreign') !== null")
        assert tab.ask("document.getElementById('answer').hidden")
        tab.ask("document.getElementById('ask').click()")
        tab.wait("document.querySelector('#rows td')?.innerText === '41'")


def _answer_once(bound: socket.socket, page: bytes) -> None:
    connection, _ = bound.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n"
            + f"content-length: {len(page)}\r\n\r\n".encode()
            + page
        )


def test_zoom_and_hidden_lines_outlive_a_refresh(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored(made_up_run("run-c", updates=12))
    figure = "document.querySelector('figure[data-key=reward]')"
    with visited(tab, place) as base, ArchiveWriter(place.archive, timeout_s=60) as writer:
        writer.write(events[: len(events) // 2])
        tab.go(base + "runs/run-c")
        tab.wait(f"{figure} !== null")
        tab.ask(f"{figure}.scrollIntoView()")
        tab.wait(f"{figure}.dataset.drawn !== undefined")
        tab.ask(f"{figure}.querySelector('.legend-line').click()")
        tab.ask(
            f"(() => {{ const over = {figure}.querySelector('.u-over'), box = over.getBoundingClientRect();"
            "for (const [kind, share] of [['move', .3], ['down', .3], ['move', .7], ['up', .7]])"
            "{ over.dispatchEvent(new MouseEvent('mouse' + kind, { bubbles: true, button: 0, view: window,"
            "  clientX: box.left + share * box.width, clientY: box.top + box.height / 2,"
            "  movementX: 1, movementY: 1 })); } })()"
        )
        tab.wait(f"Number({figure}.dataset.from) > 1")
        zoomed = tab.ask(f"[{figure}.dataset.from, {figure}.dataset.to]")
        writer.write(events[len(events) // 2 :])
        tab.wait("document.getElementById('facts').innerText.includes('12 of 12 updates')")
        tab.wait(f"{figure}.dataset.last === '12'")
        assert tab.ask(f"[{figure}.dataset.from, {figure}.dataset.to]") == zoomed
        assert tab.ask(f"{figure}.querySelector('.legend-line').getAttribute('aria-pressed')") == "false"
