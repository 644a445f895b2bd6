-- The tables as version 0.1 of the package made them.
CREATE TABLE "events" (
    "topic" VARCHAR,
    "partition" INTEGER,
    "offset" BIGINT,
    "type" VARCHAR,
    "event_id" VARCHAR,
    "run_id" VARCHAR,
    "key" VARCHAR,
    "occurred_at" TIMESTAMP,
    "timestamp_ms" BIGINT,
    "value" VARCHAR,
    "value_bytes" BLOB,
    "headers" MAP(VARCHAR, BLOB),
    "log_id" VARCHAR
);
CREATE TABLE "run_events" (
    "run_id" VARCHAR,
    "type" VARCHAR,
    "occurred_at" TIMESTAMP,
    "name" VARCHAR,
    "seed" BIGINT,
    "config" JSON,
    "package_version" VARCHAR,
    "parent_run_id" VARCHAR,
    "parent_update" INTEGER,
    "resumption" INTEGER,
    "outcome" VARCHAR,
    "reason" VARCHAR,
    "updates" INTEGER
);
CREATE TABLE "game_starts" (
    "game_id" VARCHAR,
    "run_id" VARCHAR,
    "game_index" INTEGER,
    "split" VARCHAR,
    "env_id" VARCHAR,
    "seed" BIGINT,
    "models" VARCHAR[],
    "evaluated_uid" VARCHAR,
    "started_at" TIMESTAMP
);
CREATE TABLE "planned_seats" (
    "game_id" VARCHAR,
    "run_id" VARCHAR,
    "split" VARCHAR,
    "env_id" VARCHAR,
    "seat" INTEGER,
    "model_uid" VARCHAR,
    "kind" VARCHAR,
    "policy_version" INTEGER,
    "trained" BOOLEAN,
    "template" VARCHAR
);
CREATE TABLE "game_abandonments" (
    "game_id" VARCHAR,
    "run_id" VARCHAR,
    "game_index" INTEGER,
    "split" VARCHAR,
    "reason" VARCHAR,
    "abandoned_at" TIMESTAMP
);
CREATE TABLE "game_outcomes" (
    "game_id" VARCHAR,
    "run_id" VARCHAR,
    "game_index" INTEGER,
    "split" VARCHAR,
    "env_id" VARCHAR,
    "seed" BIGINT,
    "models" VARCHAR[],
    "evaluated_uid" VARCHAR,
    "finished_at" TIMESTAMP,
    "reason" VARCHAR,
    "reason_text" VARCHAR,
    "winner" VARCHAR,
    "rewards" DOUBLE[],
    "invalid_seat" INTEGER,
    "num_turns" INTEGER,
    "duration_ms" DOUBLE
);
CREATE TABLE "seats" (
    "game_id" VARCHAR,
    "run_id" VARCHAR,
    "split" VARCHAR,
    "env_id" VARCHAR,
    "seat" INTEGER,
    "model_uid" VARCHAR,
    "kind" VARCHAR,
    "policy_version" INTEGER,
    "trained" BOOLEAN,
    "opponent" VARCHAR,
    "role" VARCHAR,
    "reward" DOUBLE,
    "rank" INTEGER,
    "result" VARCHAR,
    "turns" INTEGER,
    "invalid_moves" INTEGER,
    "ended_invalid" BOOLEAN,
    "finished_at" TIMESTAMP
);
CREATE TABLE "actions" (
    "game_id" VARCHAR,
    "run_id" VARCHAR,
    "game_turn" INTEGER,
    "seat" INTEGER,
    "action" VARCHAR,
    "valid" BOOLEAN
);
CREATE TABLE "trajectories" (
    "trajectory_id" VARCHAR,
    "game_id" VARCHAR,
    "run_id" VARCHAR,
    "game_index" INTEGER,
    "split" VARCHAR,
    "env_id" VARCHAR,
    "seed" BIGINT,
    "seat" INTEGER,
    "model_uid" VARCHAR,
    "policy_version" INTEGER,
    "role" VARCHAR,
    "template" VARCHAR,
    "trained" BOOLEAN,
    "opponents" VARCHAR[],
    "num_turns" INTEGER,
    "prompt_tokens" BIGINT,
    "completion_tokens" BIGINT,
    "reward" DOUBLE,
    "reason" VARCHAR,
    "invalid_move" BOOLEAN,
    "opponent_invalid" BOOLEAN,
    "temperature" DOUBLE,
    "top_p" DOUBLE,
    "finished_at" TIMESTAMP
);
CREATE TABLE "turns" (
    "trajectory_id" VARCHAR,
    "game_id" VARCHAR,
    "run_id" VARCHAR,
    "seat" INTEGER,
    "turn_index" INTEGER,
    "game_turn" INTEGER,
    "policy_version" INTEGER,
    "observation" VARCHAR,
    "prompt" VARCHAR,
    "completion" VARCHAR,
    "action" VARCHAR,
    "valid" BOOLEAN,
    "finish_reason" VARCHAR,
    "prompt_tokens" INTEGER,
    "completion_tokens" INTEGER,
    "prompt_token_ids" INTEGER[],
    "completion_token_ids" INTEGER[],
    "logprobs" FLOAT[],
    "format_feedback" JSON,
    "step_info" JSON,
    "latency_ms" DOUBLE
);
CREATE TABLE "steps" (
    "step_id" VARCHAR,
    "trajectory_id" VARCHAR,
    "game_id" VARCHAR,
    "run_id" VARCHAR,
    "game_index" INTEGER,
    "env_id" VARCHAR,
    "seat" INTEGER,
    "turn_index" INTEGER,
    "num_turns" INTEGER,
    "model_uid" VARCHAR,
    "policy_version" INTEGER,
    "prompt_tokens" INTEGER,
    "completion_tokens" INTEGER,
    "truncated" BOOLEAN,
    "raw_reward" DOUBLE,
    "final_reward" DOUBLE,
    "reward" DOUBLE,
    "occurred_at" TIMESTAMP
);
CREATE TABLE "updates" (
    "run_id" VARCHAR,
    "update" INTEGER,
    "model_uid" VARCHAR,
    "trained_steps" INTEGER,
    "dropped_steps" INTEGER,
    "loss" DOUBLE,
    "metrics" MAP(VARCHAR, DOUBLE),
    "positions" MAP(VARCHAR, BIGINT),
    "duration_ms" DOUBLE,
    "occurred_at" TIMESTAMP
);
CREATE TABLE "update_steps" (
    "run_id" VARCHAR,
    "update" INTEGER,
    "step_id" VARCHAR,
    "fate" VARCHAR,
    "reason" VARCHAR,
    "batch_position" INTEGER
);
CREATE TABLE "checkpoints" (
    "run_id" VARCHAR,
    "model_uid" VARCHAR,
    "iteration" INTEGER,
    "path" VARCHAR,
    "sha256" VARCHAR,
    "size_bytes" BIGINT,
    "base_model" VARCHAR,
    "lora" JSON,
    "parent_uid" VARCHAR,
    "occurred_at" TIMESTAMP
);
CREATE TABLE "ratings" (
    "run_id" VARCHAR,
    "env_id" VARCHAR,
    "model_uid" VARCHAR,
    "mu" DOUBLE,
    "sigma" DOUBLE,
    "games" INTEGER,
    "game_id" VARCHAR,
    "occurred_at" TIMESTAMP
);
CREATE TABLE "metrics" (
    "run_id" VARCHAR,
    "source" VARCHAR,
    "update" INTEGER,
    "name" VARCHAR,
    "value" DOUBLE,
    "occurred_at" TIMESTAMP
);
CREATE TABLE "dead_letters" (
    "run_id" VARCHAR,
    "consumer" VARCHAR,
    "topic" VARCHAR,
    "partition" INTEGER,
    "offset" BIGINT,
    "reason" VARCHAR,
    "record_key" VARCHAR,
    "record_value" BLOB,
    "occurred_at" TIMESTAMP
);
CREATE TABLE positions (log_id VARCHAR, topic VARCHAR, "partition" INTEGER, next_offset BIGINT, PRIMARY KEY (log_id, topic, "partition"));
CREATE TABLE schema_version (version INTEGER, package_version VARCHAR, views_digest VARCHAR, archive_id VARCHAR);
INSERT INTO schema_version VALUES (2, '0.1.0', 'of 0.1', 'a1b2c3d4');
