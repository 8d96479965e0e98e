"""The gate-sharing protocol: one message each way per activation, and none for linear layers."""
