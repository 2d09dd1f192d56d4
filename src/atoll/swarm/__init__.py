"""Who is in the run and what was agreed: the log, the roster, leases, the broker's decisions. Pure functions only."""
