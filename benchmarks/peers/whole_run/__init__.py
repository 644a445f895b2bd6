"""Whole runs of the ancestor beside whole runs of ours: the same player, game and batch."""
