"""What people read of a run: transcripts of games, and the report."""
