"""Two skins over the API: the command line and the pages."""
