"""Results published in the paper: its tables as data, and plots of accuracy over gates."""
