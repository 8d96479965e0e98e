"""Launch of a study's runs as separate jobs, several at a time: on this machine or on a cluster."""
