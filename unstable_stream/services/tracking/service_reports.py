"""Reports of services about themselves on topic ``metrics``, for a monitor on any machine.

The launcher reports which services are up and the number of restarts of each. The archiver reports the number
of records it has stored. A report follows each change, and repeats once a minute for readers that came later.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from unstable_stream.events import Metrics

LAUNCHER: Final = "launcher"
ARCHIVER: Final = "archiver"
_ARCHIVED: Final = "archive/records"


class Service(Protocol):
    """The launcher's view of a service."""

    @property
    def name(self) -> str:
        """The name of the service."""

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""

    @property
    def restarts(self) -> int:
        """The number of restarts."""

    @property
    def trouble(self) -> str:
        """The latest death and what is done about it, in one line; empty if it never died."""


def service_values(services: Mapping[str, Service]) -> dict[str, float]:
    """Return the launcher's report about its services, as metric values."""
    values: dict[str, float] = {}
    for name, service in sorted(services.items()):
        values[f"services/{name}/up"] = float(service.pid is not None)
        values[f"services/{name}/restarts"] = float(service.restarts)
    return values


def read_services(event: Metrics) -> dict[str, tuple[float, float]]:
    """Return, by service, 1 (up) or 0 (down), and the restarts, from the launcher's report."""
    names = [
        name.split("/")[1] for name in event.values if name.startswith("services/") and name.endswith("/up")
    ]
    return {
        name: (event.values[f"services/{name}/up"], event.values.get(f"services/{name}/restarts", 0.0))
        for name in names
    }


def archived_values(records: int) -> dict[str, float]:
    """Return an archiver's report: the number of records it has stored since its start."""
    return {_ARCHIVED: float(records)}


def read_archived(event: Metrics) -> float:
    """Return the number of archived records from an archiver's report."""
    return event.values.get(_ARCHIVED, 0.0)
