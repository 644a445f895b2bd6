"""Starting a run: checks, processes, supervision."""
