"""What is known about the world before a run: machines, prices, lines, grids, as tables with source and date."""
