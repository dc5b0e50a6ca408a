"""The plan: block loops with declared accesses, their dependences, and what changes plans as a whole."""
