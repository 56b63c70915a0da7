"""The web page: pages.add_pages(app, control, visitor=FindVisitor, runs=ListRuns) puts it on the server's app."""
