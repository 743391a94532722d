"""Pictures, as text and as files. Reads plain data only; matplotlib is imported when a file is drawn."""
