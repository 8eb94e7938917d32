"""Other APIs than chat completions, spoken around the chat-completions capture path.

vLLM returns neither token ids nor log-probs on its Responses and Messages routes, so a request in one of those dialects
becomes a chat request, and the chat answer, whole or streamed, is said again in the dialect:

agent's body ──Dialect.open──► Exchange.chat ──capture path──► chat answer ──Exchange──► the dialect's answer or events

What cannot be said in a chat request is refused by name with the provider's own 400; nothing is dropped that could
change what is sampled. Everything here is synchronous and pure but for `sending`, the ASGI seam.
"""
