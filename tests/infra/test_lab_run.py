"""The run of the cluster in a box is that of one machine; the cluster adds locations alone."""

from tools.lab.cluster import LOCATIONS, RUN
from unstable_stream.api.settings import make_config


def test_a_cluster_changes_nothing_but_locations() -> None:
    alone = make_config({}, RUN, [])
    assert (alone.log, alone.learner.ckpt_root, alone.external) == ("local", None, ())
    wide = make_config({"log": "kafka://broker:9092"}, RUN, LOCATIONS[1::2])
    assert wide.log == "kafka://broker:9092"
    assert wide.learner.ckpt_root == "s3://lab/runs"
    assert wide.external == ("processors", "archiver")
    moved = wide.model_copy(
        update={
            "log": alone.log,
            "external": alone.external,
            "learner": wide.learner.model_copy(update={"ckpt_root": None}),
        }
    )
    assert moved == alone
