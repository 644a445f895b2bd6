"""The services of a run: collector, rollout workers, engines, learner, archiver."""
