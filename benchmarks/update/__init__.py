"""What an update costs verl's actor: the same rollouts as one gateway mode hands them out, and as another does."""
