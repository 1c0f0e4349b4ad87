"""The pure core: state and event in, decision and reason out. No I/O, no clock, no randomness."""
