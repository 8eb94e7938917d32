"""What a call shows of itself: the request read and prepared, the answer's evidence taken and stripped.

request bytes ──read_ask──► Ask ──► engine ──► answer or events ──► Evidence (kept) + what the agent asked for (sent)

Pure and synchronous: bytes in, bytes out, no socket.
"""
