"""Event-sourced self-play reinforcement learning for language models on text games."""

__version__ = "0.1.0"

__all__ = ["__version__"]
