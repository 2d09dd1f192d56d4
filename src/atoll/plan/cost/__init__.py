"""What training takes on given machines: operations, memory, transfers and waiting, as formulas over plain numbers.

Nothing here looks a fact up: speeds, rates and sizes come as arguments, so that a caller can draw them. Where a formula
allows it, arrays of numbers pass through element by element.
"""
