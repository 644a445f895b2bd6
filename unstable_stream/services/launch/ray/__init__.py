"""The only package that imports Ray: it starts Ray and holds the actors of a run."""
