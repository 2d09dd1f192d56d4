"""Figures, published or ours, beside what the planner says: a module for each source (`python -m bench.plan`)."""
