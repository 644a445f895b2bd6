"""One module for each kind of page: it reads, and fills a template."""
