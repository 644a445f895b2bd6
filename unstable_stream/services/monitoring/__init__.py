"""What an operator sees: lag, throughput, dead letters, services, for a person and for Prometheus."""
