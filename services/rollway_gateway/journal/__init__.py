"""The gateway's journal: what a session is made from, on disk before an agent has the end of an answer.

    change of a session ──► record ──► frame in a segment ──► committed ──► the agent gets the last bytes
         (store.py)        records.py      frames.py           writer.py

On disk, when:

- A session's opening, a call's record, its whole answer and what `previous_response_id` may continue are waited for:
  before the ticket, before the last bytes of the answer. So are sealing, forgetting, and changes of pools.
- That a call began, ended with nothing, or was taken by its client is not waited for: it rides along with the next
  group, after 50 ms at the latest.
- A group is whatever waits: one write, and with ``fsync`` one `fdatasync`. What cannot be written stays in line for its
  place and is tried again; meanwhile calls are refused before anything is sampled.

A record holds what is new: turns from where the turn they extend ends, digests of a conversation's new messages,
counts. `replay` makes a session from its records, and that is the only way back, whether the process was killed or the
session was put away because memory was short or it was sealed. `found` reads every segment once at the start and keeps
an index: 12 bytes a record, whatever it holds.

Segments are deleted from the lowest on, once nothing in them is needed, so that the record that a session is over
outlives the session's own. What pins an old one is copied forward, with its sequence number, when more than half of
the disk is dead.

A frame that is not whole at the end of the last segment is a torn end: cut off, and logged with its size. Anywhere else
it is lost evidence, and the gateway does not start: `mend` cuts it out and marks the sessions it may belong to.
"""
