"""How replicas stay one model: the chunk grid, codecs, merging, the anchor, schedules. Pure functions only."""
