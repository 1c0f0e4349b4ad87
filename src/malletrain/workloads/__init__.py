"""Workloads: malleable jobs and how their models truly scale, read or drawn."""
