"""Traces: what a machine's logs say of its idle nodes."""
