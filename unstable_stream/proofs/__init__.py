"""Proofs about a run: ``audit`` counts what happened, ``verify`` computes again and compares."""
