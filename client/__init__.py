"""What one device does: its ClientApp, its data, local training, personal model and its own store."""
