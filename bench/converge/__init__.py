"""How well recipes converge beside DDP: the text, the trials, and the runner that plays them and writes them down."""
