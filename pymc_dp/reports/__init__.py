"""Reports on runs: their guarantee, the quality of their draws, forecasts, and deployment records."""
