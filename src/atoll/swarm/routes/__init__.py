"""Who sends what to whom in a round: owners and shares, circles, rings and trees. All of it follows from the log."""
