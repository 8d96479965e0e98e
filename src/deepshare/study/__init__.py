"""Studies: the paper's measurements and claims reproduced, methods compared, and reports on finished runs."""
