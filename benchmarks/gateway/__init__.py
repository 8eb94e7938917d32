"""What a gateway costs: CPU and memory per call and per streamed event, beside its published peers, in one run."""
