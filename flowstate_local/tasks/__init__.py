"""Durable tasks: workflows that survive whatever happens, on the same log and store as the agent's memory."""
