"""Request and facts become choices, choices a plan: everything here is a function of values."""
