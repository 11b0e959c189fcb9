"""An LLM agent whose execution state is its memory, on your own machine."""
