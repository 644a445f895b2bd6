"""The court for environments: play one in many ways, and say what is wrong with it before anybody trains.

- :mod:`~unstable_stream.games.court.playing` plays games and records them;
- :mod:`~unstable_stream.games.court.repeats`, :mod:`~unstable_stream.games.court.rules`,
  :mod:`~unstable_stream.games.court.results` and :mod:`~unstable_stream.games.court.texts` hold the checks:
  each is a function of the trial that yields what it found;
- :mod:`~unstable_stream.games.court.judge` tries them all, in a process of its own;
- :mod:`~unstable_stream.games.court.verdict` is what comes out, and the version of the code that was judged.

To add a check, write such a function, name it in :data:`~unstable_stream.games.court.judge.CHECKS`, and plant
the defect in ``tests/games/court/defects.py``.
"""
