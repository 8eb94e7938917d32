"""The gateway: an OpenAI-compatible proxy in front of inference servers that records what they sampled, per session."""
