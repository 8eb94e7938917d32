"""Exact mode over HTTP: a chat call that goes on from a known answer is prompted with ids, and answered as chat.

chat request ──Lane──► chat route (first turns, branches, what only chat can serve)
                 └───► completions with prompt ids ──AsChat──► chat answer

`probe` decides once per worker whether its sessions may go the second way. All but `probe` and `proofs` is pure.
"""
