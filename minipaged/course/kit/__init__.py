"""What checks and figures are made with."""
