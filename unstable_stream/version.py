"""The version of the package: recorded with every run, archive and labelled set."""

__version__ = "0.2.0"
