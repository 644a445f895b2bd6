"""Send the spans of a run to an OTLP endpoint: the only module that imports ``opentelemetry``."""

from collections.abc import Mapping, Sequence

from unstable_stream.console import without_logins
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events.id_sets import digest
from unstable_stream.services.streams.trackers import Piece
from unstable_stream.services.tracking.spans import SpanFold, TraceSpan
from unstable_stream.version import __version__

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

    from unstable_stream.services.tracking.http_session import session
except ModuleNotFoundError as error:
    raise ConfigError(f"the tracker otel needs {error.name}: pip install 'unstable_stream[otel]'") from error

_PATH = "/v1/traces"
_SCOPE = InstrumentationScope("unstable_stream", __version__)


class OtelTracker(SpanFold):
    """Sends spans, with ids that follow from those of the events: sent twice, they are the same spans."""

    batch = 64
    unit = "games, rewards and updates"

    def __init__(
        self,
        endpoint: str | None = None,
        headers: Mapping[str, str] | None = None,
        service: str = "unstable_stream",
        content: bool = False,
    ) -> None:
        """Store the arguments; nothing is sent before the first span.

        Args:
            endpoint: ``http://HOST:PORT`` of a collector. ``None``: the environment's
                ``OTEL_EXPORTER_OTLP_ENDPOINT``, else ``http://localhost:4318``.
            headers: sent with each request, e.g. a key; ``None``: ``OTEL_EXPORTER_OTLP_HEADERS``.
            service: ``service.name`` of the spans.
            content: send the prompts and the completions too, as attributes of the generations.
        """
        super().__init__(content=content)
        self._resource = Resource({"service.name": service, "service.version": __version__})
        url = None if endpoint is None else endpoint.rstrip("/").removesuffix(_PATH) + _PATH
        self._exporter = OTLPSpanExporter(endpoint=url, headers=headers, session=session())
        self._place = (
            without_logins(url or "") or "OTEL_EXPORTER_OTLP_ENDPOINT, by default http://localhost:4318"
        )

    def send(self, pieces: Sequence[Piece]) -> None:
        """Send the spans, tried again for some seconds.

        Raises:
            RunError: the endpoint does not take them.
        """
        spans = [self._readable(span) for piece in pieces for span in piece.content]
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise RunError(
                f"otel: {self._place} does not take spans, for the reason above; start a collector there, or "
                "name another endpoint, and run it again: it goes on where it was"
            )

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: TraceSpan) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_context(span.trace, span.key),
            parent=None if span.parent is None else _context(span.trace, span.parent),
            resource=self._resource,
            attributes=span.attributes,
            links=[Link(_context(link.trace, link.key), link.attributes) for link in span.links],
            kind=SpanKind.CLIENT if span.asks_model else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=_nanoseconds(span.start_ms),
            end_time=_nanoseconds(span.end_ms),
            instrumentation_scope=_SCOPE,
        )


def _context(trace: str, key: str) -> SpanContext:
    ids = (int.from_bytes(digest(trace.encode())), int.from_bytes(digest(key.encode())[:8]))
    return SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(time_ms: float) -> int:
    return int(time_ms * 1000) * 1000
