"""Who trains with whom: one Flower strategy per file. Messages in, messages out; the mathematics is in games/."""
