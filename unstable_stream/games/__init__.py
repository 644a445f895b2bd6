"""Play one game: environment and seats in, events out. The only package that loads TextArena.

:mod:`~unstable_stream.games.environments` is the door to TextArena,
:mod:`~unstable_stream.games.play` plays a game, :mod:`~unstable_stream.games.templates` words the prompts and
reads the answers, :mod:`~unstable_stream.games.opponents.scripted` has opponents that need no model, and
:mod:`~unstable_stream.games.players` is what a player must be. Importing this package loads none of them.
"""
