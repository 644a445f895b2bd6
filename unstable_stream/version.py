"""The version of the package: recorded with every run, archive and labelled set."""

__all__ = ["__version__"]

__version__ = "0.1.0"
