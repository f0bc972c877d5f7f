"""What the controller and the hosts say to each other, as types.

Standard library and the syntax of Python 3.6; nothing else of ipexctl is imported. `act`, `decide` and `remote` import
it, the agent's archive carries it (`act.agent`). A value read from a file or a connection is checked here; what cannot
be read is a value of its own, never an exception elsewhere."""
