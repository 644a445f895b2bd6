"""The printing side of processes that serve: how their log lines look, and text that is safe to show."""

from unstable_stream.launch.service_output import configure_output
from unstable_stream.plain_text import plain, plain_console
from unstable_stream.views.written import cell_text, write_csv

__all__ = ["cell_text", "configure_output", "plain", "plain_console", "write_csv"]
