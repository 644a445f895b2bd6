"""The runtime of all consumers: partitions of a group, a fold, what is published and committed."""
