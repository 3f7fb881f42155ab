"""What is said of runs: forecasts and deployment records."""
