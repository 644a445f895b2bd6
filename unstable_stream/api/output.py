"""The printing side of processes that serve: how their log lines look, and text that is safe to show."""

from unstable_stream.launch.service_output import configure_output
from unstable_stream.views.csv_rows import cell_text, write_csv
from unstable_stream.views.literal import plain

__all__ = ["cell_text", "configure_output", "plain", "write_csv"]
