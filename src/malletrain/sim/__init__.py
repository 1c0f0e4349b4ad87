"""Replay: the core under virtual time, in a world that is drawn from a seed."""
