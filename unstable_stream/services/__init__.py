"""The processes of a run: rollout workers, learner, archiver and stream processors, and what starts them."""
