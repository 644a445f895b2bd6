"""Prompt templates, each paired with the extraction of the action from the completion."""
