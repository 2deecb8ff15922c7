"""From a model to production: export to one file, a server with a web page."""
