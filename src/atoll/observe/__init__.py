"""Readers of the journal: how a run stands, the terminal view, the report at the end."""
