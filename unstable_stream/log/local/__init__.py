"""The event log in one SQLite file: no server, any number of processes of one host."""
