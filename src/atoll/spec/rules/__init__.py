"""The sense of a run as a whole: what its types alone cannot say. `run.check` is the door."""
