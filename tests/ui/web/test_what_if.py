"""What-ifs: asked in a form, compared, kept only if asked; also of a run whose log is a real Kafka."""

import math
import re
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from infra.kafka.brokers import KafkaCluster
from tests.conftest import KEEPING, free_port_pair, skip_without_kafka
from tests.history.proofs.recorded_run import record_run
from tests.ui.web.conftest import HOST, RECORDED, client_of
from unstable_stream.api.config_keys import as_toml
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive
from unstable_stream.archive import query
from unstable_stream.history.hindsight.rederive import advantages
from unstable_stream.ui.web import Site, build_app

RUN = RECORDED
_ORIGIN = {"origin": f"http://{HOST}"}


@pytest.fixture(scope="module")
def asking(recorded: Place) -> Iterator[TestClient]:
    with client_of(recorded) as client:
        yield client


def ask(client: TestClient, place: Place, kind: str, **form: str) -> str:
    """Send a form, wait for the end, and return the page of the result."""
    path, data = f"/{place.root.name}/what-if/{kind}", {"run": RUN, **form}
    answer = client.post(path, data=data, headers=_ORIGIN, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    while 'data-going="yes"' in (page := client.get(answer.headers["location"]).text):
        time.sleep(0.03)
    return page


def test_the_forms_begin_from_what_the_run_used(asking: TestClient, recorded: Place) -> None:
    page = asking.get(f"/{recorded.root.name}/what-if").text
    assert "TrueSkill" in page
    assert "final = [" in page
    assert "NormalizeRewardsByEnv" in page


def test_games_are_rated_otherwise(asking: TestClient, recorded: Place) -> None:
    same = ask(asking, recorded, "ratings", system="trueskill")
    assert re.search(r"<b>0 of \d+ ratings differ</b>", same)
    other = ask(asking, recorded, "ratings", system="elo", k="16", label="by-elo")
    assert not re.search(r"<b>0 of \d+ ratings differ</b>", other)
    assert (recorded.root / "what-if" / RUN / "by-elo" / "about.json").is_file()
    assert "by-elo" in asking.get(f"/{recorded.root.name}/what-if").text
    again = ask(asking, recorded, "ratings", system="elo", label="by-elo")
    assert "there is a set at" in again
    assert "ratings differ" in ask(asking, recorded, "ratings", system="elo", label="by-elo", replace="1")


def test_rewards_are_shaped_otherwise(asking: TestClient, recorded: Place) -> None:
    page = asking.get(f"/{recorded.root.name}/what-if").text
    (used,) = re.findall(r'<textarea id="rewards"[^>]*>(.*?)</textarea>', page, re.DOTALL)
    own = used.replace("&#34;", '"')
    assert "the reward of 0 steps differs" in ask(asking, recorded, "rewards", rewards=own)
    assert "the reward of 0 steps differs" not in ask(asking, recorded, "rewards", rewards="final = []")


@pytest.mark.parametrize(
    ("kind", "form", "says"),
    [
        ("ratings", {"system": "evil.py:Rating"}, "expected one of"),
        ("ratings", {"system": "elo", "k": "many"}, "expected a number"),
        ("rewards", {"rewards": 'final = [{ type = "evil.py:Own" }]'}, "code of your own"),
        ("rewards", {"rewards": 'final = ["os:system"]'}, "code of your own"),
        ("rewards", {"rewards": "other = []"}, "expected lists named"),
        ("rewards", {"rewards": "final ="}, "not valid TOML"),
        ("rewards", {"rewards": "x" * 70_000}, "too long"),
    ],
)
def test_a_wrong_form_is_answered_in_words(
    asking: TestClient, recorded: Place, kind: str, form: dict[str, str], says: str
) -> None:
    answer = asking.post(f"/{recorded.root.name}/what-if/{kind}", data={"run": RUN, **form}, headers=_ORIGIN)
    assert answer.status_code in (400, 413)
    assert says in answer.text


def test_what_was_typed_is_kept_after_an_error(asking: TestClient, recorded: Place) -> None:
    path, hostile = f"/{recorded.root.name}/what-if", '"><script>alert(1)</script>'
    form = {"run": RUN, "system": "elo", "k": hostile, "mu": "1200", "label": "mine", "replace": "1"}
    page = asking.post(f"{path}/ratings", data=form, headers=_ORIGIN).text
    assert "expected a number" in page
    assert hostile not in page
    (elo,) = re.findall(r'value="elo">(.*?)</form>', page, re.DOTALL)
    for name, value in (("k", "&#34;&gt;&lt;script&gt;"), ("mu", "1200"), ("label", "mine")):
        assert re.search(rf'name="{name}" value="{re.escape(value)}', elo), name
    assert 'name="replace" value="1" checked' in elo
    assert page.count("checked") == 1  # the other forms are as they were
    page = asking.post(f"{path}/rewards", data={"run": RUN, "rewards": "final = <"}, headers=_ORIGIN).text
    assert "not valid TOML" in page
    assert ">final = &lt;</textarea>" in page


def test_what_was_asked_is_at_hand_beside_the_answer(asking: TestClient, recorded: Place) -> None:
    page = ask(asking, recorded, "ratings", system="elo", k="8")
    (again,) = re.findall(r'<p><a href="([^"]+)">Ask another', page)
    form = asking.get(again.replace("&amp;", "&")).text
    assert re.search(r'name="k" value="8"', form)
    failed = ask(asking, recorded, "ratings", system="elo", k="-1")
    (again,) = re.findall(r'<p><a href="([^"]+)">Change it', failed)
    assert re.search(r'name="k" value="-1"', asking.get(again.replace("&amp;", "&")).text)


def test_settings_say_what_they_mean(asking: TestClient, recorded: Place) -> None:
    page = asking.get(f"/{recorded.root.name}/what-if").text
    assert '<dd id="elo-k">The most that one game of two can move a rating, in points.</dd>' in page
    described = re.findall(r'aria-describedby="([\w-]+)"', page)
    assert len(described) > 10
    assert all(page.count(f'<dd id="{name}">') == 1 for name in described)
    assert "On a batch, before it is trained on" in page
    assert "NormalizeRewards(z_score" in page


def test_differences_are_drawn(asking: TestClient, recorded: Place) -> None:
    page = ask(asking, recorded, "ratings", system="elo", k="16")
    drawn = re.findall(r"<title>([\w-]+): place (\d+) → (\d+), rating", page)
    rows = re.findall(
        r'<th scope="row">([^<]+)</th><td class="right">(\d+)</td><td class="right quiet">(\d+)', page
    )
    assert drawn
    assert {(uid, was, now) for uid, was, now in drawn} <= {(uid, was, now) for uid, now, was in rows}
    ends = [float(y) for y in re.findall(r'<circle cx="300" cy="([\d.]+)"', page)]
    assert (min(ends), max(ends)) == (0, 300)
    page = ask(asking, recorded, "rewards", rewards="final = []")
    boxes = re.findall(r'aria-label="from ([+−\d.e]+) to ([+−\d.e]+), median', page)
    assert len(boxes) == page.count('class="zero"') > 2
    places = [float(x) for x in re.findall(r'<line x1="([-\d.]+)" x2="[-\d.]+" y1="10"', page)]
    assert all(0 <= x <= 200 for x in places)


def test_what_a_run_used_is_written_as_toml() -> None:
    numbers = [math.inf, -math.inf, 1e300, 7]
    said = {"text": 'a "b" \\ \n \x7f 😀', "odd key": 1, "numbers": numbers, "deep": {"yes": True}}
    used = said | {"none": None, "numbers": [*numbers, None], "deep": {"yes": True, "none": None}}
    assert tomllib.loads(f"used = {as_toml(used)}")["used"] == said
    assert math.isnan(tomllib.loads(f"used = {as_toml(math.nan)}")["used"])


def test_a_label_is_no_path(asking: TestClient, recorded: Place) -> None:
    assert "expected letters" in ask(asking, recorded, "ratings", system="elo", label="../../etc")


def test_forms_of_other_pages_are_refused(asking: TestClient, recorded: Place) -> None:
    path = f"/{recorded.root.name}/what-if/ratings"
    for headers in ({}, {"origin": "http://evil.example"}):
        assert asking.post(path, data={"run": RUN, "system": "elo"}, headers=headers).status_code == 403
    stranger = TestClient(build_app(Site([recorded]), token="other", hosts=[HOST]), base_url=f"http://{HOST}")
    assert stranger.post(path, data={"run": RUN}, headers=_ORIGIN).status_code == 403


def test_the_weights_of_a_batch_are_its_normalised_rewards(recorded: Place) -> None:
    rows = query(
        recorded.archive,
        "SELECT step_id, env_id, reward FROM update_steps JOIN steps USING (step_id) "
        "WHERE \"update\" = 1 AND fate = 'trained' OR (\"update\" = 1 AND reason = 'truncated')",
    ).rows
    found = advantages(recorded.archive, RUN, 1)
    assert found.keys() == {step for step, _, _ in rows}
    for env in {env for _, env, _ in rows}:
        rewards = {step: reward for step, of, reward in rows if of == env}
        mean = sum(rewards.values()) / len(rewards)
        spread = (sum((reward - mean) ** 2 for reward in rewards.values()) / len(rewards)) ** 0.5
        for step, reward in rewards.items():
            assert found[step] == pytest.approx((reward - mean) / (spread + 1e-8), abs=1e-6)


def test_an_update_that_is_not_there_has_no_weights(recorded: Place, archive: Path) -> None:
    assert advantages(recorded.archive, RUN, 999) == {}
    assert advantages(archive, "run-a", 1) == {}  # its configuration is made up


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """A broker of its own: these topics have one partition."""
    skip_without_kafka()
    with KafkaCluster(tmp_path / "kafka", 1, free_port_pair(), KEEPING) as cluster:
        yield cluster.bootstrap


@pytest.mark.long
@pytest.mark.broker
def test_a_run_on_kafka_is_shown_and_asked(bootstrap: str, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data", f"kafka://{bootstrap}")

    place.ask_log(lambda log: record_run(log, RUN, hosted=True))
    place.root.mkdir()
    archive(place)
    with client_of(place) as client:
        health = client.get(f"/data/runs/{RUN}/health").text
        assert "Records behind" in health
        assert f"rewards.{RUN}" in health or RUN in health
        page = ask(client, place, "rewards", rewards="final = []")
        assert "differs</b> from the one used" in page
        assert "the reward of 0 steps differs" not in page
