"""Where agents run: `agentcore`, `http`, `process`, behind the one interface in `runtime`."""
