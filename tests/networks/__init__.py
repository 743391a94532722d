"""Networks for value tests: a zoo of hand-written ones, a generator of random ones, and the comparison."""
