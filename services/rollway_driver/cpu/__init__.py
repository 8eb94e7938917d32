"""verl and its vLLM server on a machine without an accelerator. README.md says how, and why each piece is needed."""
