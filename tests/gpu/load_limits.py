"""The programs of load_programs.py."""

from __future__ import annotations

# Seconds after which a program counts as hung.
PROGRAMS = {
    "cold_threads": 120,
    "one_shape": 120,
    "distinct_shapes": 180,
    "captures": 120,
    "neighbours": 90,
    "out_of_memory": 90,
    "two_devices": 90,
}
