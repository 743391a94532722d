"""The two engines together: an eager net, some of whose Cells are compiled and split by their own pieces."""
