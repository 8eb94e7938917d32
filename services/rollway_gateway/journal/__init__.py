"""The gateway's journal: what a session is made from, on disk before an agent has the end of an answer."""
