"""Use the history of a run: replay it, rate it anew, shape its rewards anew, and explain it."""
