"""What is shown of a run while it goes on: the terminal, and metrics for Prometheus."""
