"""The local AgentCore Runtime: an HTTP server the AWS SDK takes for bedrock-agentcore by endpoint URL alone."""
