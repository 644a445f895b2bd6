"""Games found, watched and begun, and the graph of causes and effects; what a model wrote stays text."""

import math
import re
import time
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

from tests.archive.history import GAMES_PER_UPDATE, made_up_run
from tests.history.views.conftest import ATTACK
from tests.ui.web.conftest import HOST, RECORDED, client_of, shown
from unstable_stream.api.place import Place
from unstable_stream.events import Event, GameOutcome, GameStarted, game_id, step_id, trajectory_id
from unstable_stream.history.hindsight.rederive import advantages


def found(client: TestClient, base: str, query: str) -> list[str]:
    page = client.get(f"{base}/games?{query}")
    assert page.status_code == 200, page.text
    return re.findall(r'/games/[0-9a-f-]{36}[^"]*">(\w+ \d+)<', page.text)


def test_games_are_found_by_the_form(client: TestClient, base: str) -> None:
    evaluated = found(client, base, "run=run-a&split=eval&sort=earliest")
    assert evaluated == [f"eval {number}" for number in range(14)]
    # From the second checkpoint on each wins as seat 0.
    won = found(client, base, "run=run-a&split=eval&model=ckpt-000002&result=win")
    assert won == ["eval 4"]
    assert found(client, base, "run=run-a&split=train&result=&state=in-flight") == ["train 24"]
    assert len(found(client, base, "run=run-a&update=3")) == GAMES_PER_UPDATE
    assert found(client, base, "run=run-a&min_moves=6&split=train&max_moves=6&sort=earliest") == [
        f"train {number}" for number in range(4, 24, 5)
    ]
    assert found(client, base, "text=HACKED") == ["eval 12"]
    assert found(client, base, "text=board+after+4+moves&run=run-b&split=train&sort=earliest") == ["train 4"]
    assert found(client, base, "env=tictac&run=run-a&split=train&sort=longest&seat=0")[0] == "train 4"


def test_pages_of_games_follow_each_other(client: TestClient, base: str) -> None:
    first = found(client, base, "sort=earliest")
    second = found(client, base, "sort=earliest&page=2")
    assert len(first) == 50
    assert second
    page = client.get(f"{base}/games?sort=earliest&run=").text
    assert "?sort=earliest&amp;page=2" in page


@pytest.mark.parametrize(
    "query", ["split=human2", "page=0", "page=x", "update=-1", "seat=1e9", "sort=luck", "page=99999999999"]
)
def test_a_wrong_wish_is_answered_in_words(client: TestClient, base: str, query: str) -> None:
    answer = client.get(f"{base}/games?{query}")
    assert answer.status_code == 400
    assert "expected" in answer.text


def test_a_game_is_shown_move_by_move(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/games/{game_id('run-a', 'train', 4)}").text
    assert page.count('<li class="move') == 6
    assert page.count('<svg class="board"') == 6
    assert page.count("<circle") + page.count("<path") == 1 + 2 + 3 + 4 + 5 + 6
    assert "row 1: O, X, O; row 2: X, O, X; row 3: empty, empty, empty" in page
    assert ">update 2</a>" in page
    assert "correct_answer_format: yes" in page
    assert 'title="-0.500 nats, 60.7 %, token 100">#100<' in page
    assert client.get(f"{base}/games/{game_id('run-a', 'train', 999)}").status_code == 404
    assert client.get(f"{base}/games/..%2f..%2fetc").status_code == 404


def test_each_move_has_the_probability_that_its_answer_had(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/games/{game_id('run-a', 'train', 4)}").text
    moves = re.findall(r'<li class="seat\d"><a href="#move-(\d+)">(.*?)</a></li>', page)
    assert [turn for turn, _ in moves] == list("012345")
    # Seat 0 answered with tokens of -0.5 nats each; the other's answers are not recorded.
    sure = {int(turn): re.findall(r"(-[\d.]+) nats.* ([\d.]+ %)</span>", text) for turn, text in moves}
    assert [bool(sure[turn]) for turn in range(6)] == [True, False] * 3
    for ((nats, percent),) in filter(None, sure.values()):
        assert percent == f"{100 * math.exp(float(nats)):.1f} %"
    assert page.count(">!?</span>") == sum(bool(found) for found in sure.values())


def test_the_games_before_and_after_are_those_of_the_list(client: TestClient, base: str) -> None:
    def near(address: str) -> dict[str, str]:
        page = client.get(address).text
        found = re.findall(r'<a rel="(prev|next)" href="([^"]+)">', page)
        return {which: link.replace("&amp;", "&") for which, link in found}

    def at(number: int, split: str = "eval") -> str:
        return f"{base}/games/{game_id('run-a', split, number)}"

    assert near(at(0)) == {"next": at(1)}
    assert near(at(3)) == {"prev": at(2), "next": at(4)}
    assert near(at(13)) == {"prev": at(12)}
    listed = "?run=run-a&split=eval&model=ckpt-000002&opponent=random&sort=longest"
    numbers = [int(each.split()[1]) for each in found(client, base, listed[1:])]
    assert len(numbers) > 1
    for place, number in enumerate(numbers):
        led = near(at(number) + listed + "&page=1")
        assert led.get("prev", "").partition("?")[0] == (at(numbers[place - 1]) if place else "")
        if "next" in led:
            assert led["next"].startswith(at(numbers[place + 1]) + "?run=run-a&")
    every = found(client, base, "sort=earliest&page=1"), found(client, base, "sort=earliest&page=2")
    assert len(every[0]) == 50
    page = client.get(f"{base}/games?sort=earliest").text
    last = re.findall(r'href="([^"]+/games/[0-9a-f-]{36}[^"]*)"', page)[-1].replace("&amp;", "&")
    assert near(last)["next"].endswith("page=2")
    assert near(near(last)["next"])["prev"] == last
    # A game that is not in the list any more has no neighbours in it, and still leads back.
    gone = client.get(at(3) + "?split=train&page=1").text
    assert 'rel="next"' not in gone
    assert "The list" in gone


def test_surprising_moves_of_a_run_name_their_opponents(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/runs/run-a/surprises").text
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition("<tbody>")[2], re.DOTALL)
    nats = [float(found) for row in rows for found in re.findall(r"(-[\d.]+) nats", row)]
    assert len(nats) == len(rows) == 50
    assert nats == sorted(nats)
    assert all('data-label="Opponent">random<' in row for row in rows if "train" in row)
    link, turn = re.findall(r'href="([^"#]+)#move-(\d+)"', page)[0]
    assert f'id="move-{turn}"' in client.get(link).text
    assert client.get(f"{base}/runs/run-z/surprises").status_code == 404


def test_a_list_of_games_has_small_boards(client: TestClient, base: str) -> None:
    games = [game_id("run-a", "train", number) for number in (4, 24, 999)]
    page = client.get(f"{base}/games/boards", params={"game": games}).text
    assert re.findall(r'data-of="([^"]+)"', page) == games[:1], "neither one in flight nor an unknown one"
    assert "row 1: O, X, O; row 2: X, O, X" in page
    assert "data-of" not in client.get(f"{base}/games/boards").text


@pytest.mark.parametrize("env_id", ["KuhnPoker-v0", "openspiel:tic_tac_toe", "openspiel:othello", ""])
def test_a_game_whose_texts_show_no_board_has_texts(tmp_path: Path, env_id: str) -> None:
    def renamed(event: Event) -> Event:
        known = isinstance(event, GameStarted | GameOutcome)
        return msgspec.structs.replace(event, env_id=env_id) if known else event

    game = game_id("run-a", "train", 4)
    with shown(tmp_path, *map(renamed, made_up_run(updates=1))) as (client, base):
        page = client.get(f"{base}/games/{game_id('run-a', 'train', 1)}").text
        assert "row 1" not in client.get(f"{base}/games/boards?game={game}").text
    assert page.count('<li class="move') == 3
    assert 'class="board' not in page
    assert ">sees<" in page


def test_two_games_beside_each_other(client: TestClient, base: str) -> None:
    one, other = (game_id("run-a", "eval", number) for number in (2, 3))
    page = client.get(f"{base}/games/{one}?beside={other}").text
    assert page.count('<article class="watched"') == 2
    assert 'id="move-0"' in page
    assert 'id="b-move-0"' in page


def test_what_a_model_wrote_stays_text(client: TestClient, base: str) -> None:
    pages = [
        client.get(f"{base}/games/{game_id('run-a', 'eval', 12)}").text,
        client.get(f"{base}/games?text=%3Cscript%3E&model=%22%3E%3Cscript%3E").text,
        client.get(f"{base}/games/%3Cscript%3E").text,
        client.get(f"{base}/games/{game_id('run-a', 'eval', 3)}?page=1&model=%22%3E%3Cscript%3E").text,
        client.get(f"{base}/runs/run-a/surprises").text,
        client.get(f"{base}/games/boards?game=%22%3E%3Cscript%3E").text,
    ]
    assert "&lt;/script&gt;&lt;/pre&gt;&lt;img src=x" in pages[0]
    for page in pages:
        assert ATTACK not in page
        assert "<img" not in page
        assert len(re.findall(r"<script(?! src=\"/static/)", page)) == 0
        assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", page) == []
    assert "\ufffd[31mred\ufffd[2J\ufffd]0;hacked\ufffd" in pages[0]


_ORIGIN = {"origin": f"http://{HOST}"}


def test_checkpoints_are_offered(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/play").text
    assert '<option value="run-a@6">' in page
    assert '<option value="run-b@0">' in page


@pytest.mark.parametrize(
    ("policy", "status"), [("tiny-player", 400), ("../../etc", 400), ("run-z@1", 404), ("", 400)]
)
def test_what_cannot_be_played_is_said(client: TestClient, base: str, policy: str, status: int) -> None:
    answer = client.post(f"{base}/play", data={"policy": policy}, headers=_ORIGIN)
    assert answer.status_code == status
    assert 'role="alert"' in answer.text


def test_what_cannot_be_asked_is_said(client: TestClient, base: str) -> None:
    address = f"{base}/games/{game_id('run-a', 'train', 4)}"
    wish = {"policy": "<b>@1", "turn": "0"}
    assert client.post(f"{address}/ask", data=wish).status_code == 403
    assert client.post(f"{address}/ask", data=wish | {"turn": "x"}, headers=_ORIGIN).status_code == 400
    page = client.post(f"{address}/ask", data=wish, headers=_ORIGIN)
    assert page.status_code == 200
    answer = re.search(r'data-from="([^"]+)"', page.text)
    assert answer is not None
    deadline = time.monotonic() + 30
    while 'data-going="yes"' in (said := client.get(answer[1]).text):
        assert time.monotonic() < deadline
        time.sleep(0.03)
    assert '<p class="trouble" role="alert">' in said
    assert "<b>@1" not in page.text + said
    # An answer that is forgotten, or that of another game, leaves the page as it is.
    assert "asked-0" not in client.get(f"{address}?asked=nothing").text
    assert client.get(f"{base}/asked/nothing").status_code == 404


def test_a_game_that_is_not_played_here(client: TestClient, base: str) -> None:
    assert client.get(f"{base}/play/nothing").status_code == 404
    for path in ("move", "give-up"):
        assert client.post(f"{base}/play/nothing/{path}", headers=_ORIGIN).status_code == 404
        assert client.post(f"{base}/play/nothing/{path}").status_code == 403


def ends(page: str) -> set[str]:
    """Return the names of the boxes."""
    return set(re.findall(r'aria-label="(\w+ [\w-]+)"><rect', page))


def test_a_step_has_causes_and_effects(client: TestClient, base: str) -> None:
    game = game_id("run-a", "train", 4)
    step = step_id(trajectory_id(game, 0), 0)
    page = client.get(f"{base}/why?of={step}").text
    nearest = {"checkpoint ckpt-000001", "update 2", "checkpoint ckpt-000002"}
    assert {f"step {step}", f"game {game}", *nearest} <= ends(page)
    assert "Watch its game" in page
    # Every box leads on.
    for address in re.findall(r'<a href="([^"]+)" aria-label', page):
        assert client.get(address.replace("&amp;", "&")).status_code == 200


@pytest.mark.parametrize("of", ["run-a:update:3", "run-a:ckpt-000003", "run-a"])
def test_other_things_have_them_too(client: TestClient, base: str, of: str) -> None:
    page = client.get(f"{base}/why?of={of}")
    assert page.status_code == 200
    assert len(ends(page.text)) > 1


def test_a_wrong_name_is_answered_in_words(client: TestClient, base: str) -> None:
    assert client.get(f"{base}/why?of=%3Cscript%3E").status_code == 404
    assert client.get(f"{base}/why?of=run-a&hops=99").status_code == 400
    assert "Name something" in client.get(f"{base}/why").text


def test_without_a_name_there_is_something_to_begin_with(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/why").text
    starts = re.findall(r'<a href="([^"]+)">(the latest \w+|a step) ', page)
    kinds = ["the latest update", "the latest checkpoint", "a step", "the latest game"]
    assert [kind for _, kind in starts] == kinds
    for address, _ in starts:
        assert client.get(address.replace("&amp;", "&")).status_code == 200


def test_the_latest_updates_of_the_chosen_run_are_offered(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/why?run=run-b").text
    assert '<option value="run-b" selected>' in page
    rows = re.findall(r'<a href="([^"]+)">update (\d+)</a></th><td><a href="([^"]+)">(ckpt-\d+)</a>', page)
    assert [int(update) for _, update, _, _ in rows] == list(range(len(rows), 0, -1))
    for update_link, update, checkpoint_link, uid in rows[:1]:
        assert f"Why: update <code>{update}</code>" in client.get(update_link).text
        assert f"Why: checkpoint <code>{uid}</code>" in client.get(checkpoint_link).text
    refused = client.get(f"{base}/why?run=%3Cscript%3E")
    assert refused.status_code == 404
    assert "no such run" in refused.text


def test_the_graph_says_in_words_what_each_node_is(client: TestClient, base: str) -> None:
    game = game_id("run-a", "train", 4)
    step = step_id(trajectory_id(game, 0), 0)
    page = client.get(f"{base}/why?of={step}").text
    assert re.search(r">ckpt-000001, move 1: [^<]+</text>", page)
    assert re.search(r">reward [+−][\d.]+</text>", page)
    assert re.search(r">(ckpt-000001 beat|[\w-]+ beat ckpt-000001|ckpt-000001 and [\w-]+ drew)", page)
    assert re.search(r">[+−][\d.]+ : [+−][\d.]+, \w+, 6 moves</text>", page)
    assert re.search(r">trained on \d+ steps</text>", page)


def test_a_step_has_its_weight_in_words(recorded: Place) -> None:
    with client_of(recorded) as client:
        page = client.get(f"/{recorded.root.name}/why?of={RECORDED}:update:1").text
    weights = advantages(recorded.archive, RECORDED, 1)
    shown = re.findall(r'aria-label="step ([\w-]+)"><rect.*?weight ([+−][\d.e]+)</text>', page)
    assert len(shown) > 1
    for step, weight in shown:
        assert float(weight.replace("−", "-")) == pytest.approx(weights[step], rel=0.01)


def test_a_place_without_runs_has_nothing_to_begin_with(tmp_path: Path) -> None:
    with client_of(Place.at(tmp_path)) as client:
        assert "nothing to begin with" in client.get(f"{client.get('/').url.path}why").text
