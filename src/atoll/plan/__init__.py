"""What a run will cost, before it is started; formulas over spec, codecs and routes, no clock and no network."""
