"""The dispatcher: admits, starts, watches, retries and collects rollouts; joins reward and tokens."""
