"""The dispatcher under everything at once: faults by seed all around it, SIGKILL at random moments, and the account."""
