"""The runs of a study as jobs of their own, many at a time: on this machine, or on a cluster."""
