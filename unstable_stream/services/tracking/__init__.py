"""Show a run while it goes on: in the terminal, and as metrics for Prometheus."""
