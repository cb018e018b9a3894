"""What raises the walls, watches what runs behind them, and answers over HTTP."""
