"""The shells: each decodes events, calls a fold of the core, publishes and commits, in a numbered order."""
