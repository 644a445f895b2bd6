"""What is known of a run: configuration, records in the log, files, how it is resumed and forked."""
