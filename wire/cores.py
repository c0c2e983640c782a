"""How many processors may be used here: those of this process, which may be fewer than the machine has."""

import os


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
