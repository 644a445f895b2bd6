"""What the configurations of runs do not share is told, and nothing else."""

from unstable_stream.history.views.written import config_differences


def test_keys_that_differ_are_told_with_every_value() -> None:
    first = {"seed": 0, "learner": {"rate": 0.1, "batch": 8}}
    second = {"seed": 0, "learner": {"rate": 0.2, "batch": 8, "clip": 1.0}}
    assert config_differences([first, second]) == [
        ("learner.clip", ["not set", "1.0"]),
        ("learner.rate", ["0.1", "0.2"]),
    ]


def test_of_a_list_of_tables_only_what_tells_them_apart() -> None:
    def opponents(*names: str) -> dict[str, object]:
        return {"opponents": [{"name": name, "kind": "scripted", "path": None} for name in names]}

    assert config_differences([opponents("a", "b"), opponents("b"), {"opponents": []}]) == [
        ("opponents", ['[{"name": "a"}, {"name": "b"}]', '[{"name": "b"}]', "[]"])
    ]
    assert config_differences([opponents("a"), opponents("a")]) == []
    (told,) = config_differences([opponents("a"), {}])
    assert told == ("opponents", ['[{"name": "a", "kind": "scripted", "path": null}]', "not set"])
