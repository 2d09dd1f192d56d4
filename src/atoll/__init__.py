"""Atoll trains one language model on many machines that are far apart, unequal and unreliable."""

__version__ = "0.1.0"
