"""The XOR task: networks with a single gate on the 2 x 2 checkerboard (section 5 of the paper)."""
