"""What is done to a network's activations: DeepShare and the methods it is compared with, behind one interface."""
