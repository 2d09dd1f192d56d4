"""How replicas stay one model: the chunk grid, codecs, merging, the anchor. Pure functions only."""
