"""What the broker chooses from what was measured: how long to wait, how much work for each, where the knobs stand."""
