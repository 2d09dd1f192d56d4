"""Is it worth it? Seven limits of training far apart, each by formula with a run of chance beside it, and a verdict.

The derivation is Atoll's own. The seven names are those under which the case against decentralized training is usually
made: bandwidth, stragglers, drift, memory, cost, the envelope of rules about updates, and where data came from.
"""
