"""A person plays a game against a checkpoint in a real browser, from the form to the record of the game."""

import pytest

from tests.api.untrained_run import record_untrained_run
from tests.ui.web.browser import NEEDS_BROWSER, Tab
from tests.ui.web.conftest import visited
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive
from unstable_stream.archive import query

pytestmark = NEEDS_BROWSER

_RUN = "run-played"
_LOADING_S = 240.0
_STATE = "document.getElementById('told').dataset.state"
_FIELD = "document.querySelector('#move input')"
_CLICK = """(chosen => {
    document.querySelector(chosen).dispatchEvent(new MouseEvent("click", { bubbles: true }));
    return document.getElementById("told").innerText !== "Your move."
        || document.querySelector("#move button").disabled;
})"""
_HAS_KEYBOARD = f"document.activeElement === {_FIELD}"
_PLAYED = "document.querySelectorAll('#moves li').length"
_BESIDE = """Array.from(document.querySelectorAll('.chances tr'),
    row => row.textContent.match(/([\\d.]+) %\\s*played, ([\\d.]+) %/)
).filter(Boolean).map(found => [Number(found[1]), Number(found[2])])"""
_OFFERED = "Array.from(document.querySelectorAll('#offers button')).map(each => each.value)"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place.at(tmp_path_factory.mktemp("played"))
    record_untrained_run(place, _RUN)
    archive(place)
    return place


def _enter(tab: Tab, move: str) -> None:
    """Type a move, and press Enter."""
    tab.call("Input.insertText", text=move)
    tab.press("Enter", 13, "\r")


def test_a_game_is_played_to_its_end(tab: Tab, place: Place) -> None:
    with visited(tab, place) as base:
        tab.go(base + f"play?run={_RUN}")
        tab.ask("document.querySelector('[name=name]').value = 'Ada <b>'")
        tab.ask("document.querySelector('form[action$=play] button').click()")
        tab.wait(f"location.pathname.includes('/play/') && {_FIELD} !== null")
        tab.ask("window.mark = 'the page was never loaded again'")
        # While the model is being loaded a move can be typed, but not played.
        tab.wait(_HAS_KEYBOARD)
        tab.call("Input.insertText", text="[99]")
        tab.wait(f"{_STATE} === 'yours'", within_s=_LOADING_S)
        assert tab.ask(f"{_FIELD}.value") == "[99]"
        assert tab.ask(_HAS_KEYBOARD)
        assert tab.ask("document.title") == "Your move"
        offered = tab.ask(_OFFERED)
        assert len(offered) == 16
        # One move against the rules is forgiven, and said.
        tab.press("Enter", 13, "\r")
        tab.wait(f"{_STATE} === 'yours' && {_PLAYED} === 1 && {_FIELD}.value === ''")
        assert tab.ask("document.getElementById('told').innerText.startsWith('The game refused [99]')")
        turn = 0
        while tab.ask(_STATE) == "yours":
            before = tab.ask(_PLAYED)
            if turn % 3 == 1:
                tab.ask("document.querySelector('#offers button').click()")
            elif turn % 3 == 2:
                # Only cells that can be played to are lit, and a click on another does nothing.
                assert tab.ask("document.querySelectorAll('#board .legal').length") == len(tab.ask(_OFFERED))
                assert not tab.ask(f"{_CLICK}('#board g:has(.mark)')")
                assert tab.ask(f"{_CLICK}('#board .legal')")
            else:
                assert tab.ask(_HAS_KEYBOARD)
                _enter(tab, tab.ask(_OFFERED)[0])
            tab.wait(f"{_PLAYED} > {before} && ['yours', 'over', 'failed'].includes({_STATE})", within_s=120)
            assert tab.ask("document.querySelectorAll('#board .mark').length > 0")
            turn += 1
        assert tab.ask(_STATE) == "over"
        assert tab.ask("/You won|You lost|Nobody won/.test(document.getElementById('told').innerText)")
        assert tab.ask("document.getElementById('move').hidden && document.getElementById('give-up').hidden")
        assert tab.ask("window.mark") == "the page was never loaded again"
        # Afterwards each answer of the model has the probability that it had.
        assert tab.ask("document.querySelectorAll('#moves li .sure').length") == (tab.ask(_PLAYED) - 1) // 2
        moves = tab.ask(_PLAYED)
        game = tab.ask("location.pathname").rpartition("/")[2]
        # And it is asked what it would have played, also where the person was to move.
        tab.ask("document.querySelector('#hints button').click()")
        tab.wait("document.getElementById('asking')?.dataset.going === 'no'", within_s=_LOADING_S)
        assert tab.ask("document.getElementById('asking').innerText") == (
            f"{_RUN}@0 was asked before {moves} moves."
        )
        assert tab.ask("document.querySelectorAll('.move').length") == moves
        assert tab.ask("document.querySelectorAll('.chances').length") == moves
        assert tab.ask(f"document.querySelector('.chances caption').innerText.includes('now of {_RUN}@0')")
        rows = tab.ask(_BESIDE)
        assert len(rows) == (moves - 1) // 2, "the recorded answers, by the same checkpoint"
        assert all(abs(now - then) <= 0.1 for now, then in rows), rows
        tab.ask("history.back()")
        tab.wait("document.querySelector('#told a') !== null")
        tab.ask("document.querySelector('#told a').click()")
        tab.wait("document.querySelector('.player:not([hidden])') !== null")
        assert tab.ask("document.querySelectorAll('.move').length") == moves
        assert tab.ask("document.querySelectorAll('.chances').length") == 0
        assert tab.ask("document.querySelector('.seats').innerText.includes('Ada <b>')")
    ((split, state, turns, run),) = query(
        place.archive, "SELECT split, state, num_turns, run_id FROM games WHERE game_id = $1", [game]
    ).rows
    assert (split, state, turns) == ("human", "finished", moves)
    rated = query(place.archive, "SELECT DISTINCT model_uid FROM ratings WHERE run_id = $1", [run]).rows
    assert sorted(rated) == [("Ada <b>",), ("ckpt-000000",)]


def test_a_move_between_two_cells_takes_two_clicks(tab: Tab, place: Place) -> None:
    with visited(tab, place) as base:
        tab.go(base + "play")
        tab.ask("document.querySelector('form[action$=play] button').click()")
        tab.wait(f"location.pathname.includes('/play/') && {_FIELD} !== null")
        tab.wait(f"{_STATE} === 'yours'", within_s=_LOADING_S)
        tab.wait(_HAS_KEYBOARD)
        # This game marks cells; its moves are told to be from cell 0 to 5, from 0 to 6, and from 1 to 5.
        tab.ask(
            "document.querySelectorAll('#offers button').forEach((each, at) => {"
            " each.dataset.cells = ['0 5', '0 6', '1 5'][at] ?? '15 14'; })"
        )
        lit = "Array.from(document.querySelectorAll('#board .legal'), each => each.dataset.cell).join()"
        cell = '#board [data-cell="{}"]'
        assert not tab.ask(f"{_CLICK}('{cell.format(0)}')")
        assert tab.ask(lit) == "5,6"
        assert not tab.ask(f"{_CLICK}('{cell.format(1)}')"), "another is chosen"
        assert tab.ask(lit) == "5"
        assert not tab.ask(f"{_CLICK}('{cell.format(9)}')"), "none is chosen"
        assert tab.ask(lit) == "0,1,15"
        assert not tab.ask(f"{_CLICK}('{cell.format(0)}')")
        assert tab.ask(f"{_CLICK}('{cell.format(6)}')")
        tab.wait(f"{_PLAYED} > 0 && document.querySelector('#moves code').innerText === '[1]'")
        tab.wait(f"{_STATE} === 'yours'", within_s=120)
        tab.ask("document.querySelector('#give-up button').click()")
        tab.wait(f"{_STATE} === 'over'", within_s=120)


def test_what_the_server_refuses_is_said_and_stays_typed(tab: Tab, place: Place) -> None:
    with visited(tab, place) as base:
        tab.go(base + "play")
        tab.ask("document.querySelector('form[action$=play] button').click()")
        tab.wait(f"location.pathname.includes('/play/') && {_FIELD} !== null")
        tab.wait(f"{_STATE} === 'yours'", within_s=_LOADING_S)
        tab.wait(_HAS_KEYBOARD)
        tab.ask(f"{_FIELD}.removeAttribute('maxlength')")
        tab.ask(f"{_FIELD}.value = 'x'.repeat(5000)")
        tab.press("Enter", 13, "\r")
        tab.wait("document.getElementById('wrong').innerText.includes('at most 4,000 characters')")
        assert tab.ask(f"{_FIELD}.value.length") == 5000
        # The refusal is said before the page has asked how the game stands; then the buttons are free again.
        tab.wait(f"{_STATE} === 'yours' && !document.querySelector('#move button').disabled")
        assert tab.ask(f"{_FIELD}.value.length") == 5000
        tab.ask("document.querySelector('#give-up button').click()")
        tab.wait(f"{_STATE} === 'over'", within_s=120)
        tab.wait("document.getElementById('told').innerText.includes('You gave up')")
        # A refusal is what the console is told too.
        assert [each for each in tab.complaints if "400" not in each] == []
        tab.complaints.clear()


def test_people_play_a_tournament_against_the_clock(tab: Tab, place: Place) -> None:
    with visited(tab, place) as base:
        tab.go(base + "play")
        tab.ask("document.querySelector('[name=names]').value = 'Ada, <i>Bob, Ada'")
        tab.ask("document.querySelector('form[method=get] [name=clock]').value = '1'")
        tab.ask("document.querySelector('form[method=get] button').click()")
        tab.wait("document.querySelector('h1').innerText.startsWith('Tournament')")
        assert tab.ask("document.querySelectorAll('td button').length") == 2, "each begins once"
        tab.ask("document.querySelector('td button').click()")
        tab.wait(f"location.pathname.includes('/play/') && {_FIELD} !== null")
        tab.wait(f"{_STATE} === 'yours'", within_s=_LOADING_S)
        # The clock goes on in the page, and each move has the time that it took.
        tab.wait("/0:5[0-8]/.test(document.getElementById('clock').innerText)")
        movers = ["Ada", "<i>Bob"]
        while tab.ask(_STATE) == "yours":
            before = tab.ask(_PLAYED)
            assert tab.ask("document.getElementById('told').innerText") == f"{movers[before % 2]}: your move."
            assert not tab.ask("document.querySelector('#seen details').open"), "the other one looks"
            assert tab.ask(f"{_CLICK}('#board .legal')")
            tab.wait(f"{_PLAYED} > {before} && ['yours', 'over', 'failed'].includes({_STATE})", within_s=120)
        assert tab.ask("/ s$/.test(document.querySelector('#moves li').innerText)")
        tab.ask("Array.from(document.querySelectorAll('#told a')).pop().click()")
        tab.wait("document.querySelector('h1').innerText.startsWith('Tournament')")
        assert tab.ask("document.querySelectorAll('td a').length") == 1
        rows = "Array.from(document.querySelectorAll('tbody th')).map(each => each.innerText).sort()"
        assert tab.ask(rows) == ["<i>Bob", "Ada"]
        # Who does nothing has lost when the time is over, and the page says so by itself.
        tab.go(base + "play")
        tab.ask("document.querySelector('[name=other]').value = 'Cleo'")
        tab.ask("document.querySelector('form[method=post] [name=clock]').value = '0.02'")
        tab.ask("document.querySelector('form[method=post] button').click()")
        tab.wait("location.pathname.includes('/play/')")
        tab.wait(f"{_STATE} === 'over'", within_s=_LOADING_S)
        assert tab.ask("document.getElementById('told').innerText.startsWith('human lost: the time is over')")
