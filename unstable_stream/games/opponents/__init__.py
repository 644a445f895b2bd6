"""Opponents that need no model: random, first legal move, perfect play by search."""
