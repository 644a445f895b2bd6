"""The learner: the trained policy, an optimizer and durable checkpoints. The caller passes the algorithm."""
