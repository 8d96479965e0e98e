"""Run the command line as `python -m deepshare`."""

from deepshare.cli import main

if __name__ == "__main__":
    main()
