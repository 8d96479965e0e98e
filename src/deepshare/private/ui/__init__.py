"""A web page of the client's own machine: a picture goes in, a class comes out, and who saw what on the way."""
