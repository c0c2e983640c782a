"""What the coordinator does: its ServerApp, the run directory, results."""
