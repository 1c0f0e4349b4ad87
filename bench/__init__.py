"""Benchmarks: what must be fast, measured beside what it is compared with."""
