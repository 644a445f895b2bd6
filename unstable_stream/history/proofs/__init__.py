"""Proofs about a run: one body of evidence, two depths.

``ledger`` reads what the log holds of a run at one moment and keeps the books of it, and ``balance`` weighs
them: that is ``audit``. ``verify`` weighs them too, and then computes again what follows from recorded
causes: ``recompute``, ``play_again``, ``repeat_training``; ``check_snapshots`` compares saved states.
``reports`` says what was found.
"""
