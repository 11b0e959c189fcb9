"""MemoryArena (arXiv 2602.16313): travel, formal reasoning and shopping, from its described behaviour.

Its code has no licence and none of it is here; the task data is CC-BY-4.0 and stays where the user put it. Progressive search
is left out, as in the FlowState paper.
"""
