"""The engine of compiled graphs: one joint graph of forward and backward, cut into pieces that run alone."""
