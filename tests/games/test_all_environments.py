"""Every training environment plays a game that can be played again, from any turn, or says why it cannot."""

import random
import re

import msgspec
import pytest

from tests.games.builders import GuessingPlayer, make_started, play, shown_again
from tests.processes import ROOT, python
from unstable_stream.games.environments import list_environments, probe
from unstable_stream.games.opponents.scripted import scripted_names, scripted_player
from unstable_stream.games.players import Player
from unstable_stream.runs.evaluation_sections import BranchConfig


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)  # some search for a solvable level
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
async def test_every_environment_plays_or_says_why_not(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    reasons = set()
    played = 0
    for env_id in list_environments()[::every]:
        num_players, found = probe(env_id)
        if num_players is None:
            assert found is not None
            assert found.reason, env_id
            assert found.remedy, env_id
            continue
        guessing = GuessingPlayer()
        player: Player = scripted_player("random-legal", env_id) if scripted_names(env_id) else guessing
        allowed = 2 * (played % 2)
        started = make_started(env_id, num_players, seed=0)
        players = dict.fromkeys(range(num_players), player)
        outcome = (await play(started, players, max_turns=60, invalid_moves_allowed=allowed)).outcome
        reasons.add(outcome.reason)
        assert 0 < outcome.num_turns <= 60, env_id
        assert len(outcome.seats) == num_players
        assert (outcome.invalid_seat is not None) == (outcome.reason == "invalid-move"), env_id
        if player is not guessing:
            assert all(action.valid for action in outcome.actions), env_id
        seen = await shown_again(outcome, max_turns=60, invalid_moves_allowed=allowed)
        assert player is not guessing or seen == guessing.shown, env_id
        for turn in random.Random(env_id).sample(range(len(seen)), min(3, len(seen))):
            made = tuple((action.seat, action.action) for action in outcome.actions[:turn])
            branch = BranchConfig(game_id="parent", turn=turn, seed=outcome.seed, actions=made)
            branched = msgspec.structs.replace(
                make_started(env_id, num_players, index=1, seed=turn),
                position=branch.position,
                moves=branch.moves,
            )
            other = GuessingPlayer()
            others = dict.fromkeys(range(num_players), other)
            await play(branched, others, max_turns=turn + 1, invalid_moves_allowed=allowed)
            assert other.shown == [seen[turn]], (env_id, turn)
        played += 1
    assert reasons == {"win", "draw", "invalid-move", "truncated"}
    assert played >= 180 // every


@pytest.mark.slow
def test_another_process_plays_the_same_games() -> None:
    code = (
        "import asyncio, hashlib\n"
        "from tests.games.test_interleaving import ENVIRONMENTS, one\n"
        "for index, (env_id, players) in enumerate(ENVIRONMENTS):\n"
        "    outcome, shown = asyncio.run(one(env_id, players, index))\n"
        "    print(env_id, hashlib.sha256(repr((outcome, shown)).encode()).hexdigest())\n"
    )
    outputs = [python(code, PYTHONHASHSEED=seed).stdout for seed in ("1", "2")]
    assert len(outputs[0].splitlines()) >= 10
    assert outputs[0] == outputs[1]


def test_the_committed_page_names_every_environment_once() -> None:
    page = (ROOT / "docs" / "reference" / "environments.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"`([^`\s:]+-train)`", page)) == list_environments()
    for env_id in ("SimpleTak-v0-train", "TicTacToe-v0-train"):
        assert f"| `{env_id}` | 2 | {', '.join(scripted_names(env_id))} |" in page
