"""Translate Kafka's answers and broken connections into errors of this package."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from aiokafka import errors as kafka

from unstable_stream.errors import (
    EventLogError,
    FencedError,
    LogUnavailableError,
    RecordTooLargeError,
    UnstableStreamError,
)
from unstable_stream.log.kafka.location import ENVIRONMENT_PREFIX, KafkaLocation

FENCED: Final = (kafka.ProducerFenced, kafka.InvalidProducerEpoch)
"""A later producer with the same id has begun, or the brokers aborted a transaction."""

_LOST_MEMBERSHIP: Final = (
    kafka.CommitFailedError,
    kafka.IllegalGenerationError,
    kafka.UnknownMemberIdError,
    kafka.RebalanceInProgressError,
    kafka.IllegalStateError,
)
"""The group has a new generation without this member, or will have one soon."""

_FORBIDDEN: Final = (
    kafka.TopicAuthorizationFailedError,
    kafka.GroupAuthorizationFailedError,
    kafka.ClusterAuthorizationFailedError,
    kafka.TransactionalIdAuthorizationFailed,
)
_TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)

REFUSED: Final = (*_FORBIDDEN, *_TOO_LARGE, kafka.InvalidTimestampError, kafka.PolicyViolationError)
"""Records that brokers checked and did not store."""
_LOGIN: Final = (
    kafka.SaslAuthenticationFailed,
    kafka.AuthenticationFailedError,
    kafka.UnsupportedSaslMechanismError,
    kafka.IllegalSaslStateError,
    kafka.AuthenticationMethodNotSupported,
)


_Kinds: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
_KNOWN: Final[tuple[tuple[_Kinds, type[EventLogError], str], ...]] = (
    (
        kafka.UnsupportedSaslMechanismError,
        EventLogError,
        "the brokers do not offer sasl_mechanism={location.sasl_mechanism}; ask who runs them which they "
        "offer.",
    ),
    (
        _LOGIN,
        EventLogError,
        "the brokers refused to log in {location.sasl_username!r} by {location.sasl_mechanism}: check "
        f"sasl_username, sasl_mechanism and the password in {ENVIRONMENT_PREFIX}SASL_PASSWORD.",
    ),
    (
        ssl.SSLCertVerificationError,
        EventLogError,
        "the broker's certificate is not trusted ({error.verify_message}): set ssl_cafile to the certificate "
        "of the authority that signed it, and use the host name it was made for.",
    ),
    (
        ssl.SSLError,
        EventLogError,
        "TLS failed ({error}): check that security_protocol={location.security_protocol} is what this port "
        "speaks, and whether it wants a client certificate (ssl_certfile, ssl_keyfile).",
    ),
    (
        _FORBIDDEN,
        EventLogError,
        "the brokers do not allow it ({kind}: {error}): ask who runs them for the right.",
    ),
    (
        _TOO_LARGE,
        RecordTooLargeError,
        "records are larger, as they are sent, than the topic's max.message.bytes, perhaps because it was "
        "lowered meanwhile: raise it.",
    ),
    (
        kafka.InvalidTimestampError,
        EventLogError,
        "the brokers refuse the time of a record, perhaps because it lies in the future: compare the clocks "
        "of this machine and the brokers.",
    ),
    (FENCED, FencedError, "a later producer with the same id has taken over."),
    (
        _LOST_MEMBERSHIP,
        FencedError,
        "the group divides its partitions anew, and nothing was committed: poll again.",
    ),
)
"""Errors with more to say than their name, what they become, and what is said."""


def is_passing(error: BaseException) -> bool:
    """Return whether the same request may succeed later, e.g. a broker restarts or a leader moves."""
    if isinstance(error, (*_LOGIN, *_FORBIDDEN, ssl.SSLCertVerificationError)):
        return False
    # asyncio's own TimeoutError is an OSError; aiokafka's is not marked as retriable.
    if isinstance(error, OSError | kafka.KafkaTimeoutError):
        return True
    return isinstance(error, kafka.KafkaError) and bool(error.retriable)


def translated(error: BaseException, location: KafkaLocation, doing: str) -> UnstableStreamError:
    """Return the error of this package for an error of Kafka.

    Args:
        error: the error from aiokafka, TLS or the operating system.
        location: the cluster's location.
        doing: the action that failed, in words that follow "could not", e.g. ``append to 'steps'``.
    """
    if isinstance(error, UnstableStreamError):
        return error
    what = f"{location}: could not {doing}: "
    for kinds, becomes, said in _KNOWN:
        if isinstance(error, kinds):
            return becomes(what + said.format(location=location, error=error, kind=type(error).__name__))
    said = "no answer in time" if isinstance(error, TimeoutError) else str(error).rstrip(".")
    said = said or type(error).__name__
    if is_passing(error):
        return LogUnavailableError(f"{what}{said}. {_checks(location)}")
    return EventLogError(f"{what}{said}.")


def _checks(location: KafkaLocation) -> str:
    wants = [] if location.uses_sasl else ["a login"]
    if location.uses_tls and location.ssl_certfile is None:
        wants.append("a certificate of ours (ssl_certfile)")
    return (
        "Check that the brokers run, that these addresses can be reached from here, that they speak "
        f"{location.security_protocol} (security_protocol=…)"
        + (f", and whether they want {' or '.join(wants)}." if wants else ".")
    )


@contextmanager
def translating(location: KafkaLocation, doing: str) -> Iterator[None]:
    """Raise Kafka's errors as errors of this package; see :func:`translated`."""
    try:
        yield
    except (kafka.KafkaError, kafka.IllegalOperation, kafka.ConsumerStoppedError, OSError) as error:
        raise translated(error, location, doing) from error
