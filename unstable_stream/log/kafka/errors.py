"""Translate Kafka's answers and broken connections into errors of this package."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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

LOST_MEMBERSHIP: Final = (
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
    if isinstance(error, kafka.UnsupportedSaslMechanismError):
        return EventLogError(
            f"{what}the brokers do not offer sasl_mechanism={location.sasl_mechanism}; ask who runs them "
            "which they offer."
        )
    if isinstance(error, _LOGIN):
        return EventLogError(
            f"{what}the brokers refused to log in {location.sasl_username!r} by {location.sasl_mechanism}: "
            f"check sasl_username, sasl_mechanism and the password in {ENVIRONMENT_PREFIX}SASL_PASSWORD."
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return EventLogError(
            f"{what}the broker's certificate is not trusted ({error.verify_message}): set ssl_cafile to the "
            "certificate of the authority that signed it, and use the host name it was made for."
        )
    if isinstance(error, ssl.SSLError):
        return EventLogError(
            f"{what}TLS failed ({error.reason or error}): check that security_protocol="
            f"{location.security_protocol} is what this port speaks, and whether it wants a client "
            "certificate (ssl_certfile, ssl_keyfile)."
        )
    if isinstance(error, _FORBIDDEN):
        return EventLogError(
            f"{what}the brokers do not allow it ({type(error).__name__}: {error}): ask who runs them for "
            "the right."
        )
    if isinstance(error, _TOO_LARGE):
        return RecordTooLargeError(
            f"{what}records are larger, as they are sent, than the topic's max.message.bytes, perhaps "
            "because it was lowered meanwhile: raise it."
        )
    if isinstance(error, kafka.InvalidTimestampError):
        return EventLogError(
            f"{what}the brokers refuse the time of a record, perhaps because it lies in the future: compare "
            "the clocks of this machine and the brokers."
        )
    if isinstance(error, FENCED):
        return FencedError(f"{what}a later producer with the same id has taken over.")
    if is_passing(error):
        return LogUnavailableError(f"{what}{_said(error)}. {_checks(location)}")
    return EventLogError(f"{what}{_said(error)}.")


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error).rstrip(".") or type(error).__name__


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
