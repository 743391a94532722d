"""Nets that the graph engine left to the PyNative engine in this run, and why; listed at its end."""

FALLBACKS: "dict[str, str]" = {}
