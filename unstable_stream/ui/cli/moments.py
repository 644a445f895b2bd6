"""Parse points in time from the command line."""

from datetime import UTC, datetime

from unstable_stream.errors import ConfigError


def parse_moment(text: str, option: str) -> int:
    """Return Unix milliseconds of an ISO 8601 date or time, UTC unless it says otherwise.

    Raises:
        ConfigError: it is none; names the option.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: expected a time such as 2026-01-31T12:00 (UTC)") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
