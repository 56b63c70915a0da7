"""The routes of the API, a file for each thing they are about."""
