"""Self-play comes near to optimal play: the real learner on Kuhn poker, with games played here."""

import numpy as np
import pytest
import torch

from tests.algorithms.learners.conftest import MakeLearner
from tests.algorithms.test_reinforce import sample
from unstable_stream.algorithms import Reinforce, TrainingSample
from unstable_stream.games.openspiel.games import load_game
from unstable_stream.games.openspiel.solution import best_responses, information_states
from unstable_stream.games.openspiel.wording import information_state
from unstable_stream.games.templates import get_template
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.inference.tokenizer import load_tokenizer

pytestmark = pytest.mark.longer

GAMES = 225
"""An update's; two to three turns each."""


def test_kuhn_poker_comes_near_to_optimal_play(make_learner: MakeLearner) -> None:
    """Uniform play is .92 away, always betting .67. It comes to .32, without the pull to .65."""
    pytest.importorskip("pyspiel")
    path = resolve_model("tiny-player")
    tokenizer, template, game = load_tokenizer(path), get_template("kuhn-board"), load_game("kuhn_poker")
    states = {each.key: each for each in information_states(game)}
    prompts = {key: list(tokenizer.encode(template.format(each.observation))) for key, each in states.items()}
    (passes,), (bets,) = (tokenizer.encode_answer(f"[{move}]") for move in (0, 1))
    learner = make_learner(
        model_name=str(path),
        algorithm=Reinforce(kl_coef=0.5, reference="average", reference_every=80),
        parameters="all",
        learning_rate=1e-3,
        batch_size=4 * GAMES,
        mini_batch_size=4 * GAMES,
        max_generation_len=1,
    )
    inputs = torch.tensor(list(prompts.values()))
    last = torch.arange(1, len(inputs) + 1) * inputs.shape[1] - 1

    def policy() -> dict[str, dict[int, float]]:
        """The chances of the moves, in which an illegal answer has no part."""
        with learner.training.evaluating(), torch.no_grad():
            states = learner.algorithm.scorer.states(inputs, last)
            chances = [
                learner.algorithm.scorer.score(states, torch.full_like(last, token), torch.ones(len(last)))[0]
                for token in (passes, bets)
            ]
        found = torch.stack(chances, dim=1).softmax(dim=1).tolist()
        return {key: dict(enumerate(row)) for key, row in zip(prompts, found, strict=True)}

    generator = np.random.default_rng(0)

    def play(chances: dict[str, dict[int, float]]) -> list[TrainingSample]:
        turns = []
        state = game.new_initial_state()
        while not state.is_terminal():
            if state.is_chance_node():
                state.apply_action(int(generator.choice(state.legal_actions())))
                continue
            key = information_state(state)
            move = int(generator.random() < chances[key][1])
            turns.append((state.current_player(), key, move))
            state.apply_action(move)
        returns = state.returns()
        return [
            sample(prompts[key], [(passes, bets)[move]], returns[player], [float(np.log(chances[key][move]))])
            for player, key, move in turns
        ]

    for update in range(1, 41):
        chances = policy()
        learner.update([turn for _ in range(GAMES) for turn in play(chances)], update)
    assert best_responses(game, policy()).nash_conv < 0.5
