"""What server and clients say to each other: run configuration, message types, record names, packing, checks of what arrives."""
