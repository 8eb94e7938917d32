"""What a gateway hands to a trainer of the tokens an engine sampled, beside its published peers."""
