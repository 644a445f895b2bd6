"""What the configurations of runs do not share is told, and nothing else."""

from unstable_stream.history.views.written import config_differences


def test_keys_that_differ_are_told_with_every_value() -> None:
    first = {"seed": 0, "learner": {"rate": 0.1, "batch": 8}, "opponents": [{"name": "a"}]}
    second = {"seed": 0, "learner": {"rate": 0.2, "batch": 8, "clip": 1.0}, "opponents": []}
    assert config_differences([first, second]) == [
        ("learner.clip", ["not set", "1.0"]),
        ("learner.rate", ["0.1", "0.2"]),
        ("opponents", ['[{"name": "a"}]', "[]"]),
    ]
