-- The steps behind each update, trained and dropped, back to game, seat and turn. Sort by `batch_position`.
-- run_id: The run.
-- model: Name of the trained model; NULL: the run trains one.
-- update: The learner update.
-- fate: `trained` or `dropped`.
-- reason: Why it was dropped; NULL if trained.
-- batch_position: 0-based place in the batch; NULL if dropped.
-- step_id: The step.
-- trajectory_id: The trajectory; its text is in `turns` (trajectory_id, turn_index).
-- game_id: The game.
-- game_index: 0, 1, 2, … within run and split.
-- env_id: TextArena environment.
-- seat: 0-based player number.
-- turn_index: 0-based within the trajectory.
-- model_uid: The policy that sampled it.
-- policy_version: Learner update that made that policy.
-- staleness: Updates between that policy and the one this update started from; 0: on-policy.
-- opponents: Model uids of the other seats.
-- completion_tokens: Sampled tokens.
-- raw_reward: The environment's final reward for the seat.
-- final_reward: After the final reward transformations.
-- reward: After the step reward transformations.
-- Question: Which steps are behind update 5?
-- Example: SELECT batch_position, game_id, seat, turn_index, staleness, reward FROM update_provenance
-- WHERE update = 5 AND fate = 'trained' ORDER BY batch_position
SELECT
    u.run_id, u.model, u.update, u.fate, u.reason, u.batch_position, u.step_id,
    s.trajectory_id, s.game_id, s.game_index, s.env_id, s.seat, s.turn_index, s.model_uid, s.policy_version,
    u.update - 1 - s.policy_version AS staleness,
    t.opponents,
    s.completion_tokens, s.raw_reward, s.final_reward, s.reward
FROM update_steps AS u
LEFT JOIN steps AS s USING (step_id)
LEFT JOIN trajectories AS t USING (trajectory_id)
