"""Recorded runs: proofs, answers, replays, and the views that show them."""
