"""The web page; ``pages.add_pages`` adds it to the server's application."""
