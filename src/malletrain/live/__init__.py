"""The controller: journal, decisions carried out, API, and the protocol with agents and workers."""
