"""Checks of sections against one another, where a run does something special.

All raise :class:`ValueError`, which pydantic turns into the error of the configuration.
"""

from collections.abc import Sequence

from unstable_stream.runs.evaluation_sections import EvaluationConfig
from unstable_stream.runs.sections import (
    BufferConfig,
    EnvConfig,
    ImitationConfig,
    LearnerConfig,
)


def check_imitation(
    imitation: ImitationConfig, buffer: BufferConfig, learner: LearnerConfig, *, several: bool
) -> None:
    """Check a run that imitates; ``several``: it trains several models."""
    if several or buffer.max_staleness is not None:
        raise ValueError(
            "imitation: turns of other runs are trained on, by one model and whatever their age: leave out "
            "trained_models and buffer.max_staleness"
        )
    whole = buffer.strategy == "paired" and not learner.batch_size % 2 and learner.optimizer_steps == 1
    if imitation.pairs and (imitation.where or not whole):
        raise ValueError(
            "imitation.pairs: an optimizer step needs both answers of a pair: set buffer.strategy = "
            f'"paired", an even learner.batch_size, found {learner.batch_size}, learner.optimizer_steps = 1, '
            "and no imitation.where"
        )


def check_round_robin(
    evaluation: EvaluationConfig, learner: LearnerConfig, envs: Sequence[EnvConfig]
) -> None:
    """Check a run in which opponents play each other in these environments."""
    if learner.iterations:
        raise ValueError(
            f"evaluation.round_robin: found learner.iterations={learner.iterations}, and the "
            "checkpoints of a run do not take part: set it to 0"
        )
    if evaluation.seatings:
        for env in envs:
            for seats in evaluation.seatings:
                if len(seats) != env.num_players:
                    raise ValueError(
                        f"evaluation.seatings: {env.env_id} has {env.num_players} seats, found "
                        f"{len(seats)}, {', '.join(seats)}: name one player for each"
                    )
        return
    if len(evaluation.opponents) < 2:
        raise ValueError(
            f"evaluation.round_robin: found {len(evaluation.opponents)} in evaluation.opponents, "
            "expected at least two who play each other"
        )
    games = evaluation.first_last_games or evaluation.max_eval_games_per_ckpt
    if games % 2:
        raise ValueError(
            f"evaluation.round_robin: found {games} games of each pair, expected an even number: every "
            "seed is played in both seat orders"
        )
    for env in envs:
        if env.num_players < 2:
            raise ValueError(
                f"evaluation.round_robin: {env.env_id} has one seat, expected two or more: name other "
                "environments, on the command line with --env"
            )
