"""The live system: controller, journal, agents, and what they say to each other."""
