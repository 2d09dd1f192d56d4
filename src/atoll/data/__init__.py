"""What is read, in which order, where it came from.

    documents -> prepare -> shards + manifest -> TokenData -> batches in the one global order

`samples.open_data` is the door for the rest of the program; `order` is the sequence every peer agrees
on; `shards` is the form on disk; `prepare`, `corpus` and `fetch` make it; `tokenizer` turns text into
numbers and back; `bigram` is the simplest model worth beating. No torch here.
"""
