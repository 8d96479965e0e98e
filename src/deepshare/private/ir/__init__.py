"""The network as every engine sees it: a list of operations on tensors."""
