"""How soon is a loss reached? The same model trained by Atoll and by others, on the same lines.

    sudo python -m bench.train                       everybody's chosen setting, for 4 and for 8 peers
    sudo python -m bench.train --only 'ours-*'
    sudo python -m bench.train --trials              what was tried before choosing

`task.py` is what is learnt and how a held-out loss is taken, `setting.py` who trains with which settings, `play.py` one
training on a lab, `__main__.py` the table.
"""
