"""τ³-bench: tau2-bench v1.0.1 (Sierra Research, MIT), airline and retail, half-duplex text, with any method as agent."""
