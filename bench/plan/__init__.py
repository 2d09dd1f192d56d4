"""Published figures beside what the planner says of them: a module for each source (`python -m bench.plan`)."""
