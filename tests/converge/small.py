"""A model so small that a trial of it is played in seconds, and what it reads."""

SENTENCE = "The council of {} peers agrees on the log, and whoever is not in it is told of every record in its time. "
SMALL = {
    "model.size.dim": 16,
    "model.size.layers": 1,
    "model.size.heads": 2,
    "model.size.kv_heads": 2,
    "model.size.ffn": 32,
    "data.context": 16,
}
