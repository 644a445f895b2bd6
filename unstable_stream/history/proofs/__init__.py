"""Proofs about a run: one body of evidence, two depths.

``evidence`` reads what the log holds of a run at one moment. ``ledger`` keeps the books of it and ``balance``
weighs them: that is ``audit``. ``verify`` weighs them too, and then computes again what follows from recorded
causes: ``recompute_steps_and_ratings``, ``recompute_batches``, ``play_again``. ``reports`` says what was
found.
"""
