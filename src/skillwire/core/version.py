"""The version of the package. The build reads it here; `skillwire.__version__` is its public name."""

__version__ = "0.1.0"
