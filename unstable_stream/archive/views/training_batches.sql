-- The batch of each update, with what was shown and said: a row for each step that was trained on.
-- run_id: The run.
-- model: Name of the trained model; NULL: the run trains one.
-- update: The learner update.
-- batch_position: 0-based place in the batch.
-- step_id: The step.
-- game_id: The game.
-- turn_index: 0-based within the trajectory.
-- model_uid: The policy that sampled it.
-- pid: 0-based player number.
-- env_id: TextArena environment.
-- obs: The text the environment showed this seat.
-- act: The text the model wrote.
-- extracted_action: Extracted from it and passed to the environment.
-- reward: After the step reward transformations, before those of the batch.
-- raw_reward: The environment's final reward for the seat.
-- final_reward: After the final reward transformations.
-- format_feedback: Findings of the action extraction.
-- step_info: The environment's info for this step.
-- Example: SELECT pid, obs, act, reward FROM training_batches WHERE update = 5 ORDER BY batch_position
SELECT
    u.run_id, u.model, u.update, u.batch_position, u.step_id, s.game_id, s.turn_index, s.model_uid,
    s.seat AS pid, s.env_id, t.observation AS obs, t.completion AS act, t.action AS extracted_action,
    s.reward, s.raw_reward, s.final_reward, t.format_feedback, t.step_info
FROM update_steps AS u
LEFT JOIN steps AS s USING (step_id)
LEFT JOIN turns AS t USING (trajectory_id, turn_index)
WHERE u.fate = 'trained'
