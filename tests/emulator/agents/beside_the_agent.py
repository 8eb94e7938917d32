"""A module that lies beside the agent's script, as an image's own code does."""

GREETING = "hello from beside"
