"""Everything about a run: configuration, records in the log, files, resuming and forking."""
