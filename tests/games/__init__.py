"""Tests of playing games."""
