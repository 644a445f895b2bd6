"""The printing side of processes that serve: how their log lines look, and text that is safe to show."""

from unstable_stream.console import plain, plain_console
from unstable_stream.history.views.written import cell_text, write_csv
from unstable_stream.services.launch.service_output import configure_output

__all__ = ["cell_text", "configure_output", "plain", "plain_console", "write_csv"]
