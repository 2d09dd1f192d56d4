"""Pipelines on paper: parts of a model in a row, micro-batches that go there and back, and how long a step takes."""
