"""Show a run to people: transcripts of games, and the report."""
