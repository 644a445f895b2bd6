"""Tests of text generation: engines, tokenizer, players."""
