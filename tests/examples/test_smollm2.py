"""The recipe of examples/smollm2: its prompts on the real tokenizer, and two updates on both engines."""

import asyncio
import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.smollm2 import transfer
from examples.smollm2.opponents import win_or_block
from examples.smollm2.templates import KuhnPoker, OpenSpielKuhnPoker, TicTacToe
from tests.games.builders import begin, observations
from tests.whole_run.processes import LaunchedRun
from unstable_stream.events import GameOutcome, LearnerUpdate, RunFinished, Trajectory, unpack_tokens
from unstable_stream.games.players import TurnContext

CONFIG = Path(__file__).resolve().parents[2] / "examples" / "smollm2" / "tictactoe.toml"
SAME = 5e-3
"""Absolute, of a token's probability in the learner over that in the engine. Two implementations of a
model in float32 differ by about 2e-5; bfloat16, or the adapter of the update before, by 0.05 to 0.2."""


def shown(*cells: int) -> list[str]:
    """What the players see before each of the moves and after the last."""
    return [text for _, text in observations("TicTacToe-v0-train", *(f"[{cell}]" for cell in cells))]


def test_prompt_is_one_example_and_the_board() -> None:
    seen = shown(4, 0, 8)
    assert TicTacToe().format(seen[0]) == "0 X2/3 O5/678 X moves 2\n012/345/678 O moves "
    assert TicTacToe().format(seen[3]) == "0 X2/3 O5/678 X moves 2\n X12/3 O5/67 O X moves "


def test_answer_is_a_digit_or_not_an_answer() -> None:
    assert TicTacToe().extract("7") == ("[7]", {"correct_answer_format": True})
    assert TicTacToe().extract(" the") == ("the", {"correct_answer_format": False})


def test_win_or_block_wins_before_it_blocks() -> None:
    def move(*moves: int) -> str:
        return win_or_block(TurnContext("TicTacToe-v0-train", 0, 2, 0, 0, 3, shown(*moves)[-1]))

    assert move(0, 3, 1, 4) == "[2]"  # completes 0 1 2, though X threatens 5
    assert move(0, 3, 8, 4) == "[5]"  # nothing to complete: blocks 3 4 5
    assert move(0, 4, 8) == move(0, 4, 8)


def test_poker_prompt_is_two_examples_the_card_and_the_open_moves() -> None:
    seen = [text for _, text in observations("KuhnPoker-v0-short-train", "[bet]", "[call]")]
    examples = "K check bet: bet\nJ fold call: fold\n"
    assert KuhnPoker().format(seen[0]) == f"{examples}K check bet:"
    assert KuhnPoker().format(seen[1]) == f"{examples}Q fold call:"
    assert KuhnPoker().format(seen[2]) == f"{examples}J check bet:"  # the next round


def test_prompts_of_the_games_that_are_not_trained_on() -> None:
    wild = [text for _, text in observations("WildTicTacToe-v0-train", "[O 4]")]
    assert transfer.WildTicTacToe().format(wild[1]) == "0 X2/3 O5/678 X moves 2\n012/3 O5/678 X moves "
    four = [text for _, text in observations("ConnectFour-v0-train", "[col 3]")]
    lines = [transfer.ConnectFour().format(text).splitlines()[1] for text in four]
    assert lines == ["0123456 X moves ", "012 X456 O moves "]
    poker = begin("openspiel:leduc_poker", 2, seed=1)
    asked = [poker.observe().text]
    poker.step("[Raise]")
    asked.append(poker.observe().text)
    lines = [transfer.LeducPoker().format(text).splitlines()[-1] for text in asked]
    assert [line.partition(" ")[2] for line in lines] == ["none call raise:", "none fold call raise:"]
    assert transfer.LeducPoker().extract(" raise") == ("[Raise]", {"correct_answer_format": True})
    stones = "7 stones are left. Available Moves: '[1]', '[2]', '[3]'"
    assert transfer.Stones().format(stones).endswith("\n7 stones, take ")
    assert transfer.ConnectFour().extract("3x") == ("[col 3]", {"correct_answer_format": True})
    assert transfer.Answer().extract(" Yes\nBecause") == ("Yes", {"correct_answer_format": True})


def test_poker_answer_is_a_move_or_not_an_answer() -> None:
    assert KuhnPoker().extract(" fold") == ("[fold]", {"correct_answer_format": True})
    assert KuhnPoker().extract(" folding") == ("folding", {"correct_answer_format": False})
    assert KuhnPoker().extract(" yes") == ("yes", {"correct_answer_format": False})


def test_openspiels_poker_prompt_numbers_the_move_and_names_those_that_are_open() -> None:
    template, game = OpenSpielKuhnPoker(), begin("openspiel:kuhn_poker")
    examples = "1 K check bet: bet\n2 J fold call: fold\n3 Q fold call: call\n"
    played = [
        ("check bet", " check", "[Pass]"),
        ("check bet", " bet", "[Bet]"),
        ("fold call", "fold", "[Pass]"),
    ]
    for number, (options, answer, move) in enumerate(played, 1):
        observation = game.observe().text
        card = observation.partition("Your card: ")[2][0]
        assert template.format(observation) == f"{examples}{number} {card} {options}:"
        assert template.extract(answer) == (move, {"correct_answer_format": True})
        game.step(move)
    assert template.extract(" call") == ("[Bet]", {"correct_answer_format": True})
    assert template.extract(" yes") == ("yes", {"correct_answer_format": False})
    assert game.done


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cells_and_moves_are_one_token_and_most_answers_are_legal(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    digits = [tokenizer.encode(str(cell))[0] for cell in range(9)]
    legal = []
    for taken in ((), (4,), (4, 0), (4, 0, 8), (2, 4, 6, 0), (1, 0, 4, 7, 3)):
        prompt = tokenizer.encode(TicTacToe().format(shown(*taken)[-1]))
        assert len(prompt) == 30, "a cell is one token, whoever has taken it"
        with torch.no_grad():
            probabilities = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        legal.append(sum(float(probabilities[digits[cell]]) for cell in range(9) if cell not in taken))
    assert sum(legal) / len(legal) > 0.5, "reward teaches nothing while most answers are illegal"

    moves = {move: tokenizer.encode(f" {move}") for move in ("check", "bet", "fold", "call")}
    assert {len(tokens) for tokens in moves.values()} == {1}
    legal = []
    for options in (("check", "bet"), ("fold", "call")):
        for card in "JQK":
            told = f"Your card is: '{card}'\nYour available actions are: '[{options[0]}]', '[{options[1]}]'"
            prompt = tokenizer.encode(KuhnPoker().format(told))
            assert len(prompt) == 16
            with torch.no_grad():
                probabilities = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
            legal.append(sum(float(probabilities[moves[move][0]]) for move in options))
    assert sum(legal) / len(legal) > 0.7


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.long)])
async def test_two_updates_of_a_real_language_model(engine: str, smollm2: Path, tmp_path: Path) -> None:
    if engine == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make vllm-env")
    few = (
        f"model={smollm2}",
        f"backend={'inline' if engine == 'transformers' else 'ray'}",
        "engine.dtype=float32",
        "learner.dtype=float32",
        "learner.iterations=2",
        "learner.optimizer_steps=1",  # a second step would see a policy that the first has changed
        "buffer.max_staleness=0",
        "learner.batch_size=16",
        "learner.mini_batch_size=16",
        "collector.num_workers=8",
        "evaluation.first_last_games=2",
    )
    arguments = ["train", str(CONFIG), "--engine", engine, "--data", str(tmp_path)]
    async with LaunchedRun(tmp_path, arguments + [f"--set={setting}" for setting in few]) as run:
        assert await asyncio.wait_for(run.end(), 800) == 0, run.told()
        assert [end.outcome for end in run.history.of(RunFinished)] == ["completed"]
        updates = run.history.of(LearnerUpdate)
        assert [update.update for update in updates] == [1, 2]
        for update in updates:
            assert update.metrics["staleness_max"] == 0
            assert update.metrics["is_ratio_max"] == pytest.approx(1.0, abs=SAME)
            assert update.metrics["is_ratio_mean"] == pytest.approx(1.0, abs=SAME)
        games = run.history.of(GameOutcome)
        assert {"random-legal", "first-legal", "win-or-block"} <= {
            seat.model_uid for game in games for seat in game.seats
        }
        turns = [turn for played in run.history.of(Trajectory) for turn in played.turns]
        assert {len(unpack_tokens(turn.completion_token_ids)) for turn in turns} == {1}
