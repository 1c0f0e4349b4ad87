"""What runs on a node: the agent, and the warm parent that forks its workers."""
