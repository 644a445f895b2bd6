"""Play without a model: a random or the first legal move, or perfect play by search."""
