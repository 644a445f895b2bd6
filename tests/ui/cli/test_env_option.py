"""``--env ENV[:TEMPLATE]`` tells the environment from the template, whatever colons the two have."""

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.games.environments import check_environment
from unstable_stream.ui.cli.options import environment


@pytest.mark.parametrize(
    "template", [None, "tictactoe-board", "games.py:Mine", "my.templates:Mine(answer='[1]')"]
)
@pytest.mark.parametrize(
    "env_id",
    [
        "TicTacToe-v0-train",
        "openspiel:kuhn_poker",
        "openspiel:nim(pile_sizes=[1,2])",
        "some/games.py:Stones",
        "./games.py:Stones(stones=15)",
        "my.games:Task(name='a:b', options={'digits': 1})",
    ],
)
def test_environment_and_template_are_told_apart(env_id: str, template: str | None) -> None:
    expected = {"env_id": env_id} | ({"template": template} if template else {})
    assert environment(f"{env_id}:{template}" if template else env_id) == expected


@pytest.mark.parametrize("text", ["disguise:", "disguise:3", "disguise:1-8:"])
def test_a_disguise_of_nothing_is_left_to_the_check_of_environments(text: str) -> None:
    with pytest.raises(ConfigError, match="expected disguise:NUMBERS:ENV"):
        check_environment(environment(text)["env_id"], 2)
