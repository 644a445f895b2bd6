"""The event log on a Kafka cluster."""
