"""Two worked examples: a report from several sources, one of which is down, and a review that asks the agent."""
