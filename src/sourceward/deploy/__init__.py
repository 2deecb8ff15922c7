"""From a model folder to production: export, server, prediction of large data, drift."""
