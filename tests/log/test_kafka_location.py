"""Where a Kafka log is, from a location and the environment; no password comes back out."""

from pathlib import Path

import pytest

from tests.processes import python
from unstable_stream.errors import ConfigError
from unstable_stream.log.kafka.location import KafkaLocation, parse_location

PASSWORD = "s3cret/with?every&sign=:@"
ENVIRON = {"UNSTABLE_STREAM_KAFKA_SASL_PASSWORD": PASSWORD}


def test_a_plain_location_needs_only_servers() -> None:
    found = parse_location("kafka://one:9092,two,[::1]:9094,[::2]/", {})
    assert found == KafkaLocation(
        ("one:9092", "two:9092", "[::1]:9094", "[::2]:9092"), sasl_mechanism="PLAIN"
    )
    assert (found.uses_tls, found.uses_sasl) == (False, False)
    assert str(found) == "kafka://one:9092,two:9092,[::1]:9094,[::2]:9092"


def test_options_come_from_the_location_and_secrets_from_the_environment(tmp_path: Path) -> None:
    authority = tmp_path / "ca & more.pem"
    authority.touch()
    text = (
        "kafka://host?security_protocol=sasl_ssl&sasl_mechanism=scram-sha-512&sasl_username=me@lab+x"
        f"&ssl_check_hostname=false&ssl_cafile={tmp_path}/ca%20%26%20more.pem"
    )
    found = parse_location(text, ENVIRON | {"UNSTABLE_STREAM_KAFKA_SSL_PASSWORD": "another-s3cret"})
    assert "s3cret" not in f"{found} {found!r}"
    assert found == KafkaLocation(
        ("host:9092",),
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="me@lab+x",
        sasl_password=PASSWORD,
        ssl_password="another-s3cret",
        ssl_cafile=str(authority),
        ssl_check_hostname=False,
    )
    assert (found.uses_tls, found.uses_sasl) == (True, True)


def test_the_environment_completes_the_location_which_wins() -> None:
    environ = ENVIRON | {
        "UNSTABLE_STREAM_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "UNSTABLE_STREAM_KAFKA_SASL_USERNAME": "from-environment",
        "UNSTABLE_STREAM_KAFKA_SSL_CAFILE": "",  # as good as not set
    }
    found = parse_location("kafka://host", environ)
    assert (found.security_protocol, found.sasl_username) == ("SASL_SSL", "from-environment")
    assert found.sasl_mechanism == "PLAIN"
    named = parse_location("kafka://host?sasl_username=from-location", environ)
    assert (named.security_protocol, named.sasl_username) == ("SASL_SSL", "from-location")
    # A user name meant for another cluster does no harm to one without logins.
    plain = parse_location("kafka://host?security_protocol=PLAINTEXT", environ)
    assert not plain.uses_sasl


@pytest.mark.parametrize(
    "text",
    [
        f"kafka://me:{PASSWORD}@host:9092",
        f"kafka://{PASSWORD}@host",
        f"kafka://host?sasl_password={PASSWORD}",
        f"kafka://host?security_protocol=SASL_SSL&sasl_plain_password={PASSWORD.replace('@', '')}",
        f"kafka://host?ssl_password={PASSWORD.replace('@', '')}",
        f"kafka://host?{PASSWORD.replace('@', '')}",
    ],
)
def test_a_password_in_the_location_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"UNSTABLE_STREAM_KAFKA_SASL_PASSWORD|expected name=value"
    ) as refused:
        parse_location(text, {})
    assert "s3cret" not in str(refused.value)
    assert "every" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected host:port"),
        ("host:port", "'host:port': expected host:port"),
        ("host:70000", "expected host:port"),
        ("host/topic", "expected host:port"),
        ("host?linger_ms=5", "unknown Kafka option 'linger_ms'; known are security_pr"),
        ("host?security_protocol", "option 1 .* expected name=value"),
        ("host?security_protocol=SSL&security_protocol=SSL", "security_protocol twice"),
        ("host?security_protocol=TLS", "'TLS': expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("host?security_protocol=SASL_SSL&sasl_mechanism=GSSAPI", "GSSAPI.*SCRAM-SHA-512"),
        ("host?sasl_username=me", "sasl_username has no effect with security_protocol=PLAINTEXT"),
        ("host?ssl_check_hostname=false", "no effect .* expected SSL or SASL_SSL"),
        ("host?security_protocol=SSL&ssl_cafile=ca.pem", "'ca.pem': expected an absolute path"),
        ("host?security_protocol=SSL&ssl_cafile=/no/ca.pem", "'/no/ca.pem': there is no such file"),
        (f"host?security_protocol=SSL&ssl_keyfile={__file__}", "ssl_keyfile needs ssl_certfile"),
        ("host?security_protocol=SASL_SSL", "needs sasl_username"),
        ("host?security_protocol=SASL_SSL&sasl_username=me", "set UNSTABLE_STREAM_KAFKA_SASL_PASSWORD"),
    ],
)
def test_what_cannot_work_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_location(f"kafka://{text}", {})


def test_another_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="a Kafka location looks like 'kafka://"):
        parse_location("http://host", {})


def test_only_opening_a_kafka_log_loads_its_client() -> None:
    program = (
        "import sys, unstable_stream.log, unstable_stream.events, unstable_stream.ui.cli\n"
        "import unstable_stream.runs.data_dir, unstable_stream.log.kafka.location\n"
        "print('aiokafka' in sys.modules)\n"
        "from unstable_stream.log.open import open_log_at\n"
        "from unstable_stream.runs.data_dir import DataDir\n"
        "log = open_log_at('kafka://127.0.0.1:1', DataDir().log)\n"
        "print('aiokafka' in sys.modules, log)\n"
    )
    assert python(program).stdout.splitlines() == ["False", "True <KafkaLog kafka://127.0.0.1:1>"]
