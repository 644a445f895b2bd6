"""The one door to Ray: its start, and the actors of engines, rollout workers and the learner."""
