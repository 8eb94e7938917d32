"""The driver: what runs on the trainer. The dispatcher's client, and the verl manager."""
