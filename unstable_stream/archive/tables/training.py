"""Tables of what models said and what the learner made of it."""

from unstable_stream.archive.tables.declare import Column, Item, Table, items_of, json_text
from unstable_stream.events import (
    Checkpoint,
    DroppedStep,
    LearnerUpdate,
    Step,
    Trajectory,
    packed_length,
)

__all__ = ["TABLES"]


def _fates(update: LearnerUpdate) -> list[Item]:
    trained = [Item(update, step, index) for index, step in enumerate(update.step_ids)]
    return trained + [Item(update, dropped, -1) for dropped in update.dropped]


def _was_dropped(row: Item) -> bool:
    return isinstance(row.item, DroppedStep)


TABLES = (
    Table(
        "trajectories",
        "One seat's view of one finished game, for every seat a language model played.",
        (Trajectory,),
        (
            Column("trajectory_id", "VARCHAR", "The trajectory."),
            Column("game_id", "VARCHAR", "The game."),
            Column("run_id", "VARCHAR", "The run."),
            Column("game_index", "INTEGER", "0, 1, 2, … within run and split."),
            Column("split", "VARCHAR", "`train` or `eval`."),
            Column("env_id", "VARCHAR", "TextArena environment."),
            Column("seed", "BIGINT", "The game's seed."),
            Column("seat", "INTEGER", "0-based player number."),
            Column("model_uid", "VARCHAR", "Checkpoint uid or name of a fixed opponent."),
            Column("policy_version", "INTEGER", "Update that made the checkpoint; NULL: fixed opponent."),
            Column("role", "VARCHAR", "The environment's name for the seat, if any."),
            Column("template", "VARCHAR", "Prompt template."),
            Column("trained", "BOOLEAN", "Whether the turns become steps."),
            Column("opponents", "VARCHAR[]", "Model uids of the other seats.", lambda e: list(e.opponents)),
            Column("num_turns", "INTEGER", "Decisions of this seat.", lambda e: len(e.turns)),
            Column(
                "prompt_tokens",
                "BIGINT",
                "Prompt tokens of all turns.",
                lambda e: sum(packed_length(turn.prompt_token_ids) for turn in e.turns),
            ),
            Column(
                "completion_tokens",
                "BIGINT",
                "Sampled tokens of all turns.",
                lambda e: sum(packed_length(turn.completion_token_ids) for turn in e.turns),
            ),
            Column("reward", "DOUBLE", "This seat's final reward."),
            Column("reason", "VARCHAR", "How the game ended, as in `game_outcomes`."),
            Column("invalid_move", "BOOLEAN", "This seat's invalid move ended the game."),
            Column("opponent_invalid", "BOOLEAN", "Another seat's invalid move ended the game."),
            Column("temperature", "DOUBLE", "Sampling temperature."),
            Column("top_p", "DOUBLE", "Nucleus sampling threshold."),
            Column("finished_at", "TIMESTAMP", "UTC.", "occurred_at_ms"),
        ),
    ),
    Table(
        "turns",
        "Every decision of a language model: what it saw, was given and said.",
        (Trajectory,),
        (
            Column("trajectory_id", "VARCHAR", "The trajectory.", "event.event_id"),
            Column("game_id", "VARCHAR", "The game.", "event.game_id"),
            Column("run_id", "VARCHAR", "The run.", "event.run_id"),
            Column("seat", "INTEGER", "Who moved.", "event.seat"),
            Column("turn_index", "INTEGER", "0-based within the trajectory.", "item.turn_index"),
            Column("game_turn", "INTEGER", "0-based among the game's moves.", "item.game_turn"),
            Column("policy_version", "INTEGER", "Update whose weights sampled it.", "item.policy_version"),
            Column("observation", "VARCHAR", "What the environment showed.", "item.observation"),
            Column("prompt", "VARCHAR", "The observation in the template.", "item.prompt"),
            Column("completion", "VARCHAR", "What the model wrote.", "item.completion"),
            Column("action", "VARCHAR", "Extracted and passed to the environment.", "item.action"),
            Column("valid", "BOOLEAN", "Whether the environment accepted it.", "item.valid"),
            Column("finish_reason", "VARCHAR", "`stop` or `length`.", "item.finish_reason"),
            Column(
                "prompt_tokens",
                "INTEGER",
                "Number of prompt tokens.",
                lambda row: packed_length(row.item.prompt_token_ids),
            ),
            Column(
                "completion_tokens",
                "INTEGER",
                "Number of sampled tokens.",
                lambda row: packed_length(row.item.completion_token_ids),
            ),
            Column(
                "prompt_token_ids", "INTEGER[]", "What the engine got.", "item.prompt_token_ids", packed=True
            ),
            Column(
                "completion_token_ids",
                "INTEGER[]",
                "What the engine sampled.",
                "item.completion_token_ids",
                packed=True,
            ),
            Column("logprobs", "FLOAT[]", "Nats, one per sampled token.", "item.logprobs", packed=True),
            Column(
                "format_feedback",
                "JSON",
                "What the extraction found.",
                lambda row: json_text(row.item.format_feedback),
            ),
            Column(
                "step_info",
                "JSON",
                "The environment's info for the move.",
                lambda row: json_text(row.item.step_info),
            ),
            Column("latency_ms", "DOUBLE", "Milliseconds from request to completion.", "item.latency_ms"),
        ),
        items_of("turns"),
    ),
    Table(
        "steps",
        "Trainable turns with their rewards; the tokens are in `turns` (trajectory_id, turn_index).",
        (Step,),
        (
            Column("step_id", "VARCHAR", "The step."),
            Column("trajectory_id", "VARCHAR", "The trajectory it is a turn of."),
            Column("game_id", "VARCHAR", "The game."),
            Column("run_id", "VARCHAR", "The run."),
            Column("game_index", "INTEGER", "0, 1, 2, … within run and split."),
            Column("env_id", "VARCHAR", "TextArena environment."),
            Column("seat", "INTEGER", "0-based player number."),
            Column("turn_index", "INTEGER", "0-based within the trajectory."),
            Column("num_turns", "INTEGER", "Turns of the trajectory."),
            Column("model_uid", "VARCHAR", "The policy that sampled it."),
            Column("policy_version", "INTEGER", "Learner update that made that policy."),
            Column(
                "prompt_tokens",
                "INTEGER",
                "Number of prompt tokens.",
                lambda e: packed_length(e.prompt_token_ids),
            ),
            Column(
                "completion_tokens",
                "INTEGER",
                "Number of sampled tokens.",
                lambda e: packed_length(e.completion_token_ids),
            ),
            Column("truncated", "BOOLEAN", "The completion was cut at the token limit."),
            Column("raw_reward", "DOUBLE", "The environment's final reward for the seat."),
            Column("final_reward", "DOUBLE", "After the final reward transformations."),
            Column("reward", "DOUBLE", "After the step reward transformations."),
            Column("occurred_at", "TIMESTAMP", "UTC, of the game's end.", "occurred_at_ms"),
        ),
    ),
    Table(
        "updates",
        "Learner updates, one row each.",
        (LearnerUpdate,),
        (
            Column("run_id", "VARCHAR", "The run."),
            Column("update", "INTEGER", "1 for the first."),
            Column("model_uid", "VARCHAR", "The checkpoint it saved; NULL: none."),
            Column("trained_steps", "INTEGER", "Steps in the batch.", lambda e: len(e.step_ids)),
            Column(
                "dropped_steps", "INTEGER", "Steps dropped since the last update.", lambda e: len(e.dropped)
            ),
            Column("loss", "DOUBLE", "The algorithm's loss."),
            Column("metrics", "MAP(VARCHAR, DOUBLE)", "By name, e.g. `metrics['grad_norm']`."),
            Column("positions", "MAP(VARCHAR, BIGINT)", "`topic[partition]` to next offset, when drawn."),
            Column("duration_ms", "DOUBLE", "Milliseconds of the update."),
            Column("occurred_at", "TIMESTAMP", "UTC.", "occurred_at_ms"),
        ),
    ),
    Table(
        "update_steps",
        "What became of each step: one row per step an update names.",
        (LearnerUpdate,),
        (
            Column("run_id", "VARCHAR", "The run.", "event.run_id"),
            Column("update", "INTEGER", "The update that names it.", "event.update"),
            Column(
                "step_id",
                "VARCHAR",
                "The step.",
                lambda row: row.item.step_id if _was_dropped(row) else row.item,
            ),
            Column(
                "fate",
                "VARCHAR",
                "`trained` or `dropped`.",
                lambda row: "dropped" if _was_dropped(row) else "trained",
            ),
            Column(
                "reason",
                "VARCHAR",
                "`stale`, `overflow`, `filtered` or `truncated`; NULL if trained.",
                lambda row: row.item.reason if _was_dropped(row) else None,
            ),
            Column(
                "batch_position",
                "INTEGER",
                "0-based place in the batch; NULL if dropped.",
                lambda row: None if _was_dropped(row) else row.place,
            ),
        ),
        _fates,
    ),
    Table(
        "checkpoints",
        "Saved policies, one row each.",
        (Checkpoint,),
        (
            Column("run_id", "VARCHAR", "The run."),
            Column("model_uid", "VARCHAR", "The checkpoint."),
            Column("iteration", "INTEGER", "Update that made it; 0: before any update."),
            Column("path", "VARCHAR", "Directory or URI of the adapter; NULL: the base model alone."),
            Column("sha256", "VARCHAR", "Digest of the weight file."),
            Column("size_bytes", "BIGINT", "Size of the weight file, bytes."),
            Column("base_model", "VARCHAR", "What the adapter goes on."),
            Column("lora", "JSON", "LoRA configuration.", lambda e: json_text(e.lora)),
            Column("parent_uid", "VARCHAR", "The checkpoint it was trained from."),
            Column("occurred_at", "TIMESTAMP", "UTC.", "occurred_at_ms"),
        ),
    ),
)
