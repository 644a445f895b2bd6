"""List questions that people ask of the archive, with the SQL that answers them; tests run each as it is."""

from typing import Final, NamedTuple


class Example(NamedTuple):
    """A question and its query."""

    question: str
    sql: str


EXAMPLES: Final[tuple[Example, ...]] = (
    Example(
        "Which checkpoint wins how often, from which seat?",
        "SELECT policy_version, seat, opponent, games, win_rate, win_rate_low, win_rate_high FROM win_rates "
        "WHERE split = 'eval' ORDER BY policy_version, seat",
    ),
    Example(
        "Does the curve go up?",
        "SELECT policy_version, games, win_rate, mean_reward FROM learning_curve "
        "WHERE split = 'eval' ORDER BY policy_version",
    ),
    Example(
        "How far from optimal play is it, in a game that can be solved?",
        "SELECT env_id, update, nash_conv, uniform_nash_conv FROM exploitability ORDER BY env_id, update",
    ),
    Example(
        "How long are the completions each update trained on?",
        "SELECT update, steps, mean_completion_tokens FROM completion_lengths ORDER BY update",
    ),
    Example("What were the ten longest games?", "SELECT * FROM longest_games LIMIT 10"),
    Example(
        "Which steps are behind update 5?",
        "SELECT batch_position, game_index, seat, turn_index, raw_reward, final_reward, reward "
        "FROM update_provenance WHERE update = 5 AND fate = 'trained' ORDER BY batch_position",
    ),
    Example(
        "Who is best?",
        "SELECT env_id, model_uid, conservative, mu, sigma, games FROM rating_ladder "
        "ORDER BY env_id, conservative DESC",
    ),
    Example(
        "What do models write in games they lose?",
        "SELECT t.game_id, u.turn_index, u.completion FROM turns AS u JOIN trajectories AS t "
        "USING (trajectory_id) WHERE t.reward < 0 LIMIT 5",
    ),
    Example(
        "Which moves does the environment refuse most?",
        "SELECT action, count(*) AS times FROM actions WHERE NOT valid "
        "GROUP BY action ORDER BY times DESC LIMIT 10",
    ),
    Example("Where did steps go that were not trained on?", "SELECT * FROM ledger"),
    Example(
        "How did a metric develop?",
        "SELECT update, value FROM metrics WHERE name = 'learner/loss' ORDER BY update",
    ),
    Example(
        "What did the log hold last?",
        'SELECT topic, "partition", "offset", type, value->>\'$.model_uid\' AS model_uid FROM events '
        "ORDER BY occurred_at DESC LIMIT 5",
    ),
)
