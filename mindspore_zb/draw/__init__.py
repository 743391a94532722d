"""Pictures, as text and as files, and traces. Reads plain data only; matplotlib is imported when a file is drawn."""
