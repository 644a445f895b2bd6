"""Hosting plug-in consumers: all history first, then live, with a state that survives."""
