"""MemoryArena: travel, formal reasoning and shopping, scored by the published formulas, on data that the user fetches.

Written from the description of its protocol and formulas (arXiv 2602.16313); nothing of its code is here, as that code
has no licence. Progressive search, its fifth set, is left out, as it is in the FlowState paper: it needs the web corpus
of another benchmark.

What is ours and not MemoryArena's, and stands beside the figures that it touches:
- the wording of instructions and of the judge's questions;
- a calculator among the tools, and a tool that plans a day; a plan may also be replied in the official text form;
- in travel the first traveller's plan comes as a request of its own, and who has no plan counts as failed unless told
  otherwise (`strict_missing`);
- the shop: a search in this process, a price drawn once from a range of prices, one purchase for each request;
- a reply that is empty is wrong without asking the judge, and a judge that fails leaves a figure unmeasured;
- nAUC, the normalised area under the depth curve.
"""
