"""Two machines: a server that answers clients over TLS."""
