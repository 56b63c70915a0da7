"""The web page: ``pages.add_pages`` puts it on the server's application."""
