"""Slurm: its nodes' states, its programs, and the pilots that hold its nodes for us."""
