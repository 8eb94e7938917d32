"""Exact mode over HTTP: a chat call that goes on from a known answer is prompted with ids, and answered as chat.

chat request ──Lane──► chat route (first turns, branches, what only chat can serve)
                 └───► completions with prompt ids ──AsChat──► chat answer

`probe` finds out once per worker what it can do, `learn` from its first answers; `asking` asks it what a single call
needs to know. `reader`, `thinking` and `hermes` make messages of sampled ids. All but `probe`, `proofs` and `asking` is
pure.
"""
