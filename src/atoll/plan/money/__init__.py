"""What a run costs, and how to pay less: bills, checkpoints, spot markets, several clouds, hardware of one's own.

Prices come in as arguments (dollars per hour, per gigabyte, per kilowatt-hour), so that a range can be drawn over them
and no formula knows a table.
"""
