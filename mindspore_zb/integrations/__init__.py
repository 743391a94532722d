"""The split under the conventions of other packages; nothing of them is imported."""
