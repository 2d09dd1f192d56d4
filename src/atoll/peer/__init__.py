"""One participant's life: join, get state, work, exchange, keep, leave. Start reading in `life`."""
