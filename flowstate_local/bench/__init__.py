"""Benchmarks of agents with memory: episodes of requests that depend on each other, run by any method."""
