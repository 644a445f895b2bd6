"""The event log: a contract suite for every adapter, and what is particular to each."""
