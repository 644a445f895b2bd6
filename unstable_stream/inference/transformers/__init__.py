"""Generate with transformers and torch: the default engine without a GPU."""
