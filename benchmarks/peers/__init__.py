"""Our learner beside the learners of published packages, on the same batch."""
