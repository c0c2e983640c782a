"""Figures, each with what it is compared to: `python -m benchmarks`, or each file by itself."""
