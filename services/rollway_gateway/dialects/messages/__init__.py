"""Anthropic's Messages: `POST /v1/messages` and `/v1/messages/count_tokens`.

Laws, and where this differs from vLLM's own route:

- The chat request is the one vLLM's route would make, so the prompt is the same: system blocks are joined without a
  separator, billing headers dropped, a tool result stands before the rest of its user message, ``is_error`` has no
  place in a chat template and the result's text speaks for itself.
- A last assistant message is a prefill and is continued; vLLM would answer it with a new turn.
- ``thinking`` sets the template's ``enable_thinking``, where it has one; vLLM ignores it. Whether there is thinking at
  all depends on the model and the engine's reasoning parser. ``budget_tokens`` is not enforced: an engine that cuts
  thinking short writes tokens the policy did not choose. Who wants that sends vLLM's ``thinking_token_budget``.
- ``stop_reason`` is "tool_use" whenever there is a tool call, also a forced one, and "stop_sequence" with the sequence
  where one ended the answer; vLLM says "end_turn" in both cases.
- Arguments that are no JSON object come as ``{"INVALID_JSON": text}`` in a whole answer; vLLM fails the call. Sent back
  so, they are the sampled text again.
- A streamed answer that says nothing has one empty text block, as a whole one has; vLLM streams no block.
- The signature of a thinking block says nothing and is not checked: thinking is not secret here.
"""
