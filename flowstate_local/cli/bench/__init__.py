"""`flowstate bench`: compare FlowState with other memories, on the same model, with every token accounted for."""
