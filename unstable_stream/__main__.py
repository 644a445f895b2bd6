"""``python -m unstable_stream`` is the command line, also where its script is not on the path."""

from unstable_stream.ui.cli import main

if __name__ == "__main__":
    main()
