"""The routes of the API, a file per subject."""
