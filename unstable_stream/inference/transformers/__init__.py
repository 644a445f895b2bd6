"""The inference engine on transformers and torch: the default without a GPU."""
