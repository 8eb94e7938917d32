"""The local stack: every service on one machine without Docker, and the demo that trains on it."""
