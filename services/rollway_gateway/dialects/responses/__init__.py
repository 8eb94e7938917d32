"""OpenAI's Responses: `POST /v1/responses`.

Laws, and where this differs from vLLM's own route:

- Items become chat messages as vLLM makes them: reasoning, text and function calls of one turn are one assistant
  message. Items that carry ids made here belong together by id, also where the model mixed text and calls.
- ``previous_response_id`` continues a response of the same session, with its function calls and reasoning; vLLM keeps
  responses only where switched on, and forgets those. Instructions are not carried over, as the provider has it.
- An answer cut off by its length ends a stream with ``response.incomplete``, an engine's failure with
  ``response.failed``; vLLM says "completed" for the first.
- The ids of items are the same in events and in the final object, and follow from the chat answer's id.
- ``temperature``, ``top_p`` and ``max_output_tokens`` are echoed as asked (1.0, 1.0 and null by default): what the
  engine or the session puts in their place is not told.
- Cached and reasoning tokens are counted where the engine tells them on its chat route (cached ones only with
  ``--enable-prompt-tokens-details``).
- Log-probs, where ``include`` asks for them, cover every sampled token the engine showed, as vLLM's do.
"""
