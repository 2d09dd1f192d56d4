"""What must hold, whatever went wrong: a file for each promise. `sim.check` asks for all of them."""
