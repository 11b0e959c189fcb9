"""MemoryArena: travel, formal reasoning and shopping, scored by the published formulas, on data that the user fetches.

Written from the description of its protocol and formulas (arXiv 2602.16313); nothing of its code is here, as that code
has no licence. Progressive search, its fifth set, is left out, as it is in the FlowState paper: it needs the web corpus
of another benchmark.
"""
