"""The graph engine: one compile per signature, cut into pieces for the forward, dx and groups of dw."""
