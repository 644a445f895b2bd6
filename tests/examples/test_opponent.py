"""The player with a planted weakness, which an exploiter has to find."""

from examples.extensions.opponent import leaves_column_4
from tests.games.builders import observations
from unstable_stream.games.opponents.scripted import ScriptedPlayer, scripted_player
from unstable_stream.games.players import TurnContext

ENV = "ConnectFour-v0-train"


def test_it_blocks_everywhere_but_in_column_4() -> None:
    strong = scripted_player("minimax-2", ENV)
    assert isinstance(strong, ScriptedPlayer)
    for column, answer in ((3, None), (1, "[col 1]")):
        moves = [f"[col {each}]" for each in (column, 6, column, 5, column)]
        seat, text = observations(ENV, *moves)[-1]
        turn = TurnContext(ENV, seat, 2, 2, 5, 0, text)
        assert strong.candidates(turn) == [f"[col {column}]"]
        played = leaves_column_4(turn)
        assert played == answer if answer else played != "[col 3]"
