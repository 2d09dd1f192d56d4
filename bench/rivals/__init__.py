"""Others who do parts of what Atoll does, played in the same network lab, so that a figure of ours has one beside it.

    sudo python -m bench.rivals                 every rival at every setting
    sudo python -m bench.rivals --only 'gloo-*'

`environment.py` keeps them in a virtual environment of their own, `play.py` is what a benchmark calls, `hosts.py` looks
at the processes of a lab's host, and `*_member.py` is one member of each rival, run by that environment's Python; they,
`member.py` and `hosts.py` know nothing of Atoll. `*_trainer.py` is one worker of each where a model is trained
(`bench.train`); of Atoll these know the model alone, through `trainee.py`. Each rival is set as well as its users could
set it, nothing in it is patched, and what was found broken is said where it was worked round.
"""
