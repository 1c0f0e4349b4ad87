"""OpenPBS and PBS Pro: vnodes' states, programs, and the pilots that hold nodes for us."""
