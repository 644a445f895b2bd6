"""A recorded run that trackers are given, and a place that they send to."""

import pytest

from tests.archive.history import made_up_run
from tests.places import append
from unstable_stream.api.place import Place


@pytest.fixture(scope="session")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A data directory whose log has the finished run ``run-a``, and another one."""
    place = Place.at(tmp_path_factory.mktemp("tracked"))
    append(place.data.root, [*made_up_run(), *made_up_run("other", updates=1)])
    return place
