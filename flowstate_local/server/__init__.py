"""The HTTP API: an OpenAI-compatible endpoint with a memory, for many tenants."""
